"""What each kind of work makes of rows that a test has written."""

from __future__ import annotations

import pytest
import torch

from enginewire import v1 as pb
from enginewire.server.failures import StepFailed
from enginewire.torch_engine.requests.params import BeamRules, StopRules
from enginewire.torch_engine.requests.pooling import Pooling
from enginewire.torch_engine.requests.scores import Beam, Continuation, RowLogprobs
from enginewire.torch_engine.requests.sequence import BestOf
from enginewire.torch_engine.sampling.sampler import Row
from tests.torch_engine.work.works import Closed, Runner, Works, request_of

VECTOR = Pooling("last", normalize=False)


def share(value: float) -> Row:
    return Row(share=torch.full((2,), value))


def logprobs(value: float) -> RowLogprobs:
    return RowLogprobs(value, 1, [], [], [])


def test_tokens_are_counted_when_they_are_chosen_and_told_as_they_come():
    works = Works()
    works.add(request_of(3, 2))
    works.step(lambda grant: Row(5))
    assert works.said().token_ids == [5]
    works.step(lambda grant: Row(6))
    ((_, end),) = works.said().outputs
    assert (list(end.token_ids), end.first_output_position) == ([6], 1)
    assert end.finish_reason == pb.FINISH_REASON_LENGTH
    assert works.live.counters.tokens_generated == 2
    assert not works.live.contexts


def test_a_token_outside_of_its_grammar_fails_the_request():
    works = Works()
    works.add(request_of(3, 2, grammar=Closed()))
    with pytest.raises(StepFailed, match="grammar"):
        works.step(lambda grant: Row(5))


def test_the_shares_of_a_vector_are_added_up_until_the_last_token():
    works = Works(step_tokens=4)
    works.add(request_of(6, 1, pooling=VECTOR))
    works.step(lambda grant: share(1.0))
    assert works.said().is_empty
    works.step(lambda grant: share(2.0))
    outputs = works.said()
    assert [vector for _, vector in outputs.vectors] == [[3.0, 3.0]]
    assert not outputs.is_empty
    assert not works.live.contexts


@pytest.mark.parametrize("num_done", [0, 1])
def test_a_vector_that_begins_again_begins_at_zero_and_owes_nothing_to_the_batch_that_lost_it(num_done):
    works = Works(step_tokens=4)
    request = works.add(request_of(6, 1, pooling=VECTOR))
    for _ in range(num_done):
        works.step(lambda grant: share(8.0))
    (grant,) = works.step()
    works.scheduler._preempt(grant.sequence)  # by the next batch, before the rows of this one are read
    request.work.take(grant, share(8.0))
    works.step(lambda grant: share(1.0))
    works.step(lambda grant: share(2.0))
    assert [vector for _, vector in works.said().vectors] == [[3.0, 3.0]]


def test_a_vector_that_is_no_number_fails():
    works = Works()
    works.add(request_of(6, 1, pooling=VECTOR))
    with pytest.raises(StepFailed, match="vector"):
        works.step(lambda grant: share(float("nan")))


@pytest.mark.parametrize("asked", [False, True])
def test_the_rows_of_a_candidate_are_those_of_all_its_tokens_if_they_were_asked_for(asked):
    works = Works()
    works.add(request_of(3, 2, n=2, best_of=BestOf(1, with_logprobs=asked)))
    scores = iter((-1.0, -2.0, -4.0, -2.5))
    while works.live.contexts:
        assert works.said().is_empty
        works.step(lambda grant: Row(5 + grant.sequence.index, logprobs=logprobs(next(scores))))
    ((_, best),) = works.said().outputs
    assert list(best.token_ids) == [6, 6]
    assert list(best.logprobs.token_logprobs) == ([-2.0, -2.5] if asked else [])
    assert best.HasField("cum_log_probs") == asked
    assert best.cum_log_probs == (-4.5 if asked else 0.0)


def test_the_tokens_of_a_search_are_counted_when_they_are_returned():
    works = Works()
    request = request_of(3, 1, beams=BeamRules(width=2, n=1))
    request.sequences[0].beam = Beam()
    works.add(request)
    works.step(lambda grant: Row(continuations=(Continuation(5, -1.0), Continuation(6, -2.0))))
    ((_, best),) = works.said().outputs
    assert list(best.token_ids) == [5]
    assert works.live.counters.tokens_generated == 1
    assert not works.live.contexts


def test_a_search_goes_on_when_all_of_its_beams_are_computed():
    works = Works()
    request = request_of(3, 3, beams=BeamRules(width=2, n=1))
    request.sequences[0].beam = Beam()
    works.add(request)
    row = Row(continuations=(Continuation(5, -1.0), Continuation(6, -9.0)))
    works.step(lambda grant: row)
    first, _, second = works.step() + works.step()
    request.work.take(first, row)
    assert [first.sequence.is_idle, second.sequence.is_idle] == [True, False]
    assert [first.sequence.num_output_tokens, second.sequence.num_output_tokens] == [1, 1]
    request.work.take(second, row)
    # Both go on from the better one: the place of the other is taken, and nothing that it computed is left.
    assert [beam.output_token_ids for beam in request.unfinished] == [[5, 5], [5, 6]]
    assert [beam.num_computed_tokens for beam in request.unfinished] == [4, 0]


def test_a_beam_that_nobody_takes_the_place_of_gives_everything_back():
    works = Works()
    request = request_of(3, 9, beams=BeamRules(width=2, n=1))
    request.stop = StopRules(max_total_tokens=12, eos_token_ids=frozenset({1}))
    request.sequences[0].beam = Beam()
    works.add(request)
    works.step(lambda grant: Row(continuations=(Continuation(5, -1.0), Continuation(6, -2.0))))
    first, _, second = works.step() + works.step()
    request.work.take(first, Row(continuations=(Continuation(5, -1.0),)))
    request.work.take(second, Row(continuations=(Continuation(1, -1.0),)))  # all it can do is to end
    assert [beam.output_token_ids for beam in request.unfinished] == [[5, 5]]
    assert works.scheduler.running == request.unfinished
    assert not second.sequence.block_table


def test_a_search_without_enough_hypotheses_fails():
    works = Works()
    request = request_of(3, 1, beams=BeamRules(width=2, n=2))
    request.sequences[0].beam = Beam()
    works.add(request)
    with pytest.raises(StepFailed, match="hypothesis"):
        works.step(lambda grant: Row(continuations=(Continuation(5, -1.0),)))


def test_cancelled_candidates_are_as_many_as_were_asked_for():
    works = Works()
    request = works.add(request_of(3, 2, n=3, best_of=BestOf(2, with_logprobs=False)))
    works.live.abort(request.context)
    assert [output.index for _, output in works.said().outputs] == [0, 1]
    assert not works.scheduler.has_work


def test_a_hand_off_is_the_kv_of_all_but_the_last_token_of_the_prompt():
    works = Works(runner=Runner({2: b"kv"}))
    request = works.add(request_of(3, 9, hands_over=True))
    works.step(lambda grant: Row(5))
    assert [(each, bytes(kv)) for each, kv in works.said().handed_over] == [(request, b"kv")]
    assert not works.live.contexts


def test_kv_that_cannot_be_read_fails_its_request():
    works = Works()
    works.add(request_of(3, 9, hands_over=True))
    with pytest.raises(StepFailed, match="hand-off"):
        works.step(lambda grant: Row(5))
