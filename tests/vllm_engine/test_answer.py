"""What a caller is told of a request that vLLM works for."""

from __future__ import annotations

from enginewire import v1 as pb
from enginewire.server.engines.interface import GenerateContext
from enginewire.vllm_engine.answer import Answer


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
