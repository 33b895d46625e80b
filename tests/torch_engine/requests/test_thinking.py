"""Thinking is counted, and ends where the caller's limit says."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, strategies as st

from enginewire import v1 as pb
from enginewire.server.engines.interface import Tokenizer
from enginewire.server.failures import Unsupported
from enginewire.torch_engine.folder.folder import ModelLoadError
from enginewire.torch_engine.options import TorchEngineOptions
from enginewire.torch_engine.requests.thinking import ThinkingBudget, ThinkingTokens, find_thinking_tokens
from tests.torch_engine.tiny import Answer, greedy

PROMPT = [5, 9, 33, 7, 100, 12]
OPEN, CLOSE = 190, 191
TOKENS = ThinkingTokens(OPEN, CLOSE)


@pytest.fixture
def engine(load):
    return load("llama", thinking_token_ids=(OPEN, CLOSE))


def ask(limit: int | None, max_tokens: int = 16, is_open: bool = True, **options: object):
    """A request whose prompt ends inside of a section, and whose model neither ends it nor opens another."""
    request = greedy([*PROMPT, OPEN] if is_open else PROMPT, max_tokens)
    request.sampling_options.MergeFrom(pb.SamplingOptions(**options))
    for token in (CLOSE, OPEN) if is_open else (CLOSE,):
        request.sampling_options.logit_bias.add(token_id=token, bias=-100)
    if limit is not None:
        request.stop_conditions.max_thinking_tokens = limit
    return request


def reasoning(answer: Answer) -> int:
    return answer.terminals[-1].completion_usage.completion_tokens_details.reasoning_tokens


@pytest.mark.parametrize("limit", [0, 1, 5, 15])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_section_ends_at_its_limit(engine, limit, temperature):
    free = engine.answer(ask(None, temperature=temperature, seed=4)).tokens[0]
    answer = engine.answer(ask(limit, temperature=temperature, seed=4))
    assert CLOSE not in free
    assert answer.tokens[0][:limit] == free[:limit]
    assert answer.tokens[0].index(CLOSE) == limit
    assert len(answer.tokens[0]) == 16
    assert reasoning(answer) == limit


def test_without_a_limit_thinking_is_counted_all_the_same(engine):
    assert reasoning(engine.answer(ask(None))) == 16
    assert reasoning(engine.answer(ask(None, is_open=False))) == 0


def test_outside_of_a_section_the_limit_does_nothing(engine):
    free, limited = (engine.answer(ask(limit, is_open=False)).tokens[0] for limit in (None, 1))
    assert free == limited


def test_a_section_the_model_opens_is_limited_too(engine):
    request = ask(3, is_open=False)
    request.sampling_options.logit_bias.add(token_id=OPEN, bias=100)
    answer = engine.answer(request)
    # It opens one after the other, and repeats the opening token inside.
    assert answer.tokens[0] == [OPEN, OPEN, OPEN, OPEN, CLOSE] * 3 + [OPEN]
    assert reasoning(answer) == 9


def test_the_limit_wins_over_every_other_rule(engine):
    request = ask(2, allowed_token_ids=[7, 8, 9], repetition_penalty=2.0)
    request.sampling_options.bad_words_token_ids.add(token_ids=[CLOSE])
    answer = engine.answer(request)
    assert answer.tokens[0][2] == CLOSE
    assert set(answer.tokens[0]) <= {7, 8, 9, CLOSE}


def test_a_closed_section_in_the_prompt_is_closed(engine):
    request = ask(0)
    request.token_ids.append(CLOSE)
    request.token_ids.append(4)
    assert CLOSE not in engine.answer(request).tokens[0]


@pytest.mark.parametrize("cut", range(8))
def test_a_resumed_choice_goes_on_in_its_section(engine, cut):
    whole = engine.answer(ask(5, temperature=1.0, seed=9))
    request = ask(5, temperature=1.0, seed=9)
    request.resume.choices.add(index=0, generated_token_ids=whole.tokens[0][:cut])
    rest = engine.answer(request)
    assert whole.tokens[0][:cut] + rest.tokens[0] == whole.tokens[0]
    assert reasoning(rest) == reasoning(whole) == 5


def test_every_choice_has_a_limit_of_its_own(engine):
    answer = engine.answer(ask(4, temperature=1.0, seed=1, n=3))
    assert [tokens.index(CLOSE) for tokens in answer.tokens.values()] == [4, 4, 4]
    assert reasoning(answer) == 12


@pytest.mark.parametrize("options", [{"best_of": 3}, {"use_beam_search": True}])
def test_only_what_is_returned_is_counted(engine, options):
    answer = engine.answer(ask(None, max_tokens=6, n=1, **options))
    assert reasoning(answer) == 6


def test_log_probabilities_are_the_models_own(engine):
    request = ask(1)
    request.output_options.logprobs = 1
    forced = engine.answer(request).logprobs[1]
    assert forced.token_logprobs[0] < forced.top_logprobs[0]


def test_a_limit_and_a_grammar_together_are_unsupported(engine):
    request = ask(1)
    request.sampling_options.guided_decoding.regex = "a"
    with pytest.raises(Unsupported) as caught:
        engine.answer(request)
    assert caught.value.field == "stop_conditions.max_thinking_tokens"


def test_beams_have_no_limit(engine):
    with pytest.raises(Unsupported) as caught:
        engine.answer(ask(1, use_beam_search=True))
    assert caught.value.field == "stop_conditions.max_thinking_tokens"


def test_a_model_without_thinking_refuses_a_limit_and_counts_nothing(load):
    plain = load("llama")
    with pytest.raises(Unsupported) as caught:
        plain.answer(ask(1))
    assert caught.value.field == "stop_conditions.max_thinking_tokens"
    usage = plain.answer(greedy(PROMPT, 2)).terminals[-1].completion_usage
    assert not usage.HasField("completion_tokens_details")


@given(st.lists(st.sampled_from([1, 2, OPEN, CLOSE]), max_size=40), st.booleans())
def test_counting_agrees_with_walking(token_ids, is_open):
    inside, state = 0, is_open
    for token in token_ids:
        closes, opens = state and token == CLOSE, not state and token == OPEN
        inside += state and not closes
        state = (state or opens) and not closes
    assert TOKENS.count_inside(token_ids, is_open) == inside
    assert TOKENS.is_open_after([OPEN, *token_ids] if is_open else token_ids) == state


@given(st.lists(st.sampled_from([1, 2, OPEN, CLOSE]), max_size=40), st.booleans(), st.integers(0, 6))
def test_no_section_is_longer_than_its_budget(wishes, is_open, limit):
    budget = ThinkingBudget(TOKENS, limit, is_open)
    length, state = 0, is_open
    for wish in wishes:
        token = wish if budget.forced_id is None else budget.forced_id
        budget.accept(token)
        if state and token != CLOSE:
            length += 1
        state, length = (token != CLOSE, length) if state else (token == OPEN, 0)
        assert length <= limit


def tokenizer(added: object) -> Tokenizer:
    return Tokenizer({"tokenizer.json": json.dumps({"added_tokens": added}).encode()})


def entry(content: str, token_id: object) -> dict[str, object]:
    return {"id": token_id, "content": content, "special": False}


def test_the_tokens_are_found_in_the_tokenizer():
    found = find_thinking_tokens(tokenizer([entry("<think>", 7), entry("</think>", 8), entry("x", 9)]), 10)
    assert found == ThinkingTokens(7, 8)


@pytest.mark.parametrize(
    "added",
    [
        None,
        [],
        "text",
        [1],
        [entry("<think>", 7)],
        [entry("<think>", 7), entry("</think>", 10)],
        [entry("<think>", "7"), entry("</think>", 8)],
    ],
)
def test_other_tokenizers_have_none(added):
    assert find_thinking_tokens(tokenizer(added), 10) is None
    assert find_thinking_tokens(Tokenizer({"tokenizer.json": b"[]"}), 10) is None
    assert find_thinking_tokens(None, 10) is None


@pytest.mark.parametrize("ids", [(1,), (1, 1), (1, 2, 3)])
def test_options_name_two_ids_or_none(ids):
    with pytest.raises(ValueError, match="thinking_token_ids"):
        TorchEngineOptions(thinking_token_ids=ids)


def test_ids_beyond_the_vocabulary_stop_the_start(load):
    with pytest.raises(ModelLoadError, match="thinking_token_ids"):
        load("llama", thinking_token_ids=(1, 100_000))
