"""What a caller is told of a request that vLLM works for."""

from __future__ import annotations

from enginewire import v1 as pb
from enginewire.server.engines.interface import GenerateContext
from enginewire.vllm_engine.answers.answer import Answer, endings_of, has_only_endings


def answer_to(n: int) -> Answer:
    request = pb.PreprocessedRequest(token_ids=[1, 2])
    request.sampling_options.n = n
    return Answer.of(request, GenerateContext("r"), frozenset(), frozenset(), (0, 0.0, 7))


def test_choices_have_names_that_no_other_request_of_a_life_has() -> None:
    assert [choice.name for choice in answer_to(2).choices] == ["7.0", "7.1"]
    assert [choice.name for choice in answer_to(0).choices] == ["7.0"]


def test_a_cancelled_request_has_a_terminal_for_each_open_choice_and_the_usage_on_the_last() -> None:
    answer = answer_to(3)
    answer.choices[1].end(answer.choices[1].output([5]), pb.FINISH_REASON_LENGTH)
    first, last = answer.cancel()
    assert (first.index, last.index) == (0, 2)
    assert not first.HasField("completion_usage")
    assert last.completion_usage.completion_tokens == 1
    assert not last.HasField("stop_match")


def test_a_request_is_fresh_until_one_of_its_choices_has_a_token() -> None:
    answer = answer_to(2)
    assert answer.is_fresh
    answer.choices[1].output([5])
    assert not answer.is_fresh


def guided(**stops: object) -> pb.PreprocessedRequest:
    request = pb.PreprocessedRequest(token_ids=[1], stop_conditions=pb.StopConditions(**stops))
    request.sampling_options.guided_decoding.regex = "a"
    return request


def test_a_grammar_may_end_with_an_end_of_sequence_that_is_ignored_otherwise() -> None:
    config = pb.EngineConfig(eos_token_ids=[2, 3])
    assert endings_of(guided(ignore_eos=True, stop_token_ids=[3]), config) == ({2}, {3})
    assert endings_of(guided(stop_token_ids=[3, 4]), config) == ({2, 3}, {4})
    plain = guided(ignore_eos=True, stop_token_ids=[3])
    plain.sampling_options.ClearField("guided_decoding")
    assert endings_of(plain, config) == (set(), {3})


def test_only_endings_may_be_chosen_below_min_tokens() -> None:
    request = pb.PreprocessedRequest(stop_conditions=pb.StopConditions(min_tokens=2))
    assert not has_only_endings(request, frozenset({2}))
    request.sampling_options.allowed_token_ids[:] = [2, 3]
    assert not has_only_endings(request, frozenset({2}))
    assert has_only_endings(request, frozenset({2, 3}))
    request.stop_conditions.min_tokens = 1
    assert not has_only_endings(request, frozenset({2, 3}))
