"""How requests start and end, and what that counts."""

from __future__ import annotations

from enginewire.server.engines.interface import GenerateContext
from enginewire.server.failures import Draining, StepFailed
from enginewire.torch_engine.requests.sequence import HandedOver, Sequence
from enginewire.torch_engine.sampling.sampler import Row
from tests.torch_engine.work.works import Closed, Works, request_of


def test_a_rejected_request_counts_as_come_and_gone_and_gives_back_what_was_handed_over():
    works, released = Works(), []
    request = request_of(3, 2, handed_over=HandedOver(2, bytearray(b"kv"), lambda: released.append(True)))
    works.live.reject(request, StepFailed("no"))
    counters = works.live.counters
    assert (counters.requests_added, counters.requests_finished) == (1, 1)
    assert released == [True]
    assert [context for context, _ in works.said().failures] == [request.context]


def test_an_end_is_counted_once_with_the_last_choice():
    works = Works()
    request = works.add(request_of(3, 1, n=2))
    first, second = works.step()
    request.work.take(first, Row(5))
    assert works.live.counters.requests_finished == 0
    request.work.take(second, Row(5))
    assert works.live.counters.requests_finished == 1
    assert [out.HasField("completion_usage") for _, out in works.said().outputs] == [False, True]


def test_an_abort_of_what_is_unknown_or_over_says_nothing():
    works = Works()
    request = works.add(request_of(3, 2))
    works.live.abort_each([GenerateContext("other"), request.context, request.context])
    assert len(works.said().outputs) == 1
    works.live.abort(request.context)
    assert works.said().is_empty
    assert works.live.counters.requests_finished == 1


def test_a_request_cancelled_before_it_starts_ends_at_once():
    works = Works()
    request = request_of(3, 2)
    request.context.cancel("gone")
    works.add(request)
    assert not works.live.contexts
    assert len(works.said().outputs) == 1


def test_only_what_waits_and_has_produced_nothing_is_handed_back():
    works = Works()
    runs, begun = works.add(request_of(3, 9)), works.add(request_of(3, 9))
    works.step(lambda grant: Row(5))
    works.scheduler._preempt(begun.sequences[0])
    waits, computes = works.add(request_of(3, 9)), works.add(request_of(60, 2))
    works.scheduler.waiting.remove(computes.sequences[0])
    works.scheduler._start(computes.sequences[0], [])
    works.live.hand_back_waiting(Draining("draining"))
    assert [context for context, _ in works.said().failures] == [waits.context]
    assert works.live.contexts == [runs.context, begun.context, computes.context]


def test_a_resumed_part_outside_of_its_grammar_fails_the_request():
    works = Works()
    request = request_of(3, 2, n=2, grammar=Closed())
    request.sequences[1] = Sequence(request, 1, [8])
    works.add(request)
    ((context, error),) = works.said().failures
    assert (context, error.field) == (request.context, "resume.choices.generated_token_ids")


def test_a_choice_that_was_complete_ends_without_a_step():
    works = Works()
    request = request_of(3, 2, n=2)
    request.sequences[1] = Sequence(request, 1, [8, 9])
    works.add(request)
    ((_, end),) = works.said().outputs
    assert (end.index, end.first_output_position, list(end.token_ids)) == (1, 2, [])
    assert works.live.contexts == [request.context]
