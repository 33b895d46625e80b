"""Requests whose own rules leave nothing to choose from: who is told what, and what passes instead."""

from __future__ import annotations

import pytest

from enginewire import v1 as pb
from enginewire.server.failures import InvalidRequest, StepFailed
from enginewire.torch_engine.requests.params import Guide, SamplingParams
from enginewire.torch_engine.sampling.logits_rules import nothing_left
from tests.torch_engine.scheduling.scheduling import make_request
from tests.torch_engine.tiny import VOCAB

ALLOWED = "sampling_options.allowed_token_ids"
BAD_WORDS = "sampling_options.bad_words_token_ids"


@pytest.fixture
def engine(load):
    return load("llama")


def ask(allowed=(), bad_words=(), temperature=0.0, n=1, **stop) -> pb.PreprocessedRequest:
    return pb.PreprocessedRequest(
        token_ids=[3, 4, 5],
        sampling_options=pb.SamplingOptions(
            temperature=temperature,
            seed=1,
            n=n,
            allowed_token_ids=allowed,
            bad_words_token_ids=[pb.TokenSequence(token_ids=word) for word in bad_words],
        ),
        stop_conditions=pb.StopConditions(**{"max_tokens": 6, **stop}),
    )


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize(
    ("allowed", "bad_words", "field"),
    [
        ([5], [[5, 5]], ALLOWED),
        ([5, 7], [[5], [7, 5], [7, 7]], ALLOWED),
        ([5, 7], [[5, 7], [7, 5], [5, 5], [7, 7]], ALLOWED),
        ([], [[5, 5], *([token_id] for token_id in range(VOCAB) if token_id != 5)], BAD_WORDS),
    ],
)
def test_lists_that_leave_no_token_are_the_callers_contradiction_whenever_it_shows(
    engine, allowed, bad_words, field, temperature, n
):
    healthy = engine.add(ask(temperature=temperature))
    error = engine.answer(ask(allowed, bad_words, temperature, n)).error
    assert isinstance(error, InvalidRequest)
    assert error.field == field
    engine.run()
    assert len(engine.answers[healthy].tokens[0]) == 6
    assert engine.core.scheduler.pool.num_used == 0


def test_what_a_contradictory_request_has_computed_is_still_good_for_others(load):
    engine = load("llama", block_size=4)
    request = ask([5], [[5, 5]])
    request.token_ids.extend(range(10, 30))
    engine.answer(request)
    again = ask()
    again.token_ids.extend(range(10, 30))
    whole = engine.answer(again)
    assert whole.outputs[-1].completion_usage.prompt_tokens_details.cached_tokens > 0


@pytest.mark.parametrize("bad_words", [[], [[7]]])
def test_below_min_tokens_an_end_passes_when_nothing_else_is_left(engine, bad_words):
    answer = engine.answer(ask([5, 7] if bad_words else [5], bad_words, stop_token_ids=[5], min_tokens=4))
    assert answer.tokens[0] == [5, 5, 5, 5]
    assert answer.outputs[-1].finish_reason == pb.FINISH_REASON_STOP


def test_below_min_tokens_no_end_passes_while_something_is_left(engine):
    answer = engine.answer(ask([5, 7], stop_token_ids=[5], min_tokens=6))
    assert answer.tokens[0][:5] == [7] * 5


def test_a_grammar_alone_that_leaves_nothing_is_no_fault_of_the_callers_lists():
    request = make_request(3, 4)
    request.guide = Guide("regex", "a")
    assert isinstance(nothing_left(request, "token"), StepFailed)


def test_a_grammar_that_was_too_slow_is_not_blamed_on_the_lists_beside_it():
    class Slow:
        is_too_slow = True

    request = make_request(3, 4)
    request.sampling = SamplingParams(seed=0, allowed_token_ids=[5])
    assert isinstance(nothing_left(request, "token"), InvalidRequest)
    request.sequences[0].matcher = Slow()
    assert isinstance(nothing_left(request, "token"), StepFailed)
