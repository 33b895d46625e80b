from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Callable
from typing import Any

import grpc
import pytest

from enginewire import v1 as pb
from enginewire.conformance.requirements.requirement import requirements
from enginewire.conformance.running.monitor.facts import Seen
from enginewire.conformance.running.monitor.handles import handles_of, is_multiplexed
from enginewire.conformance.running.monitor.invariant import ANSWERS, CALLS, FAILURES, STREAMS, Invariant
from enginewire.conformance.running.monitor.watch import Monitor, _taken_apart
from enginewire.conformance.wire.exchange import Exchange
from enginewire.conformance.wire.violation import Violation
from tests.conformance.running.monitor.cases import (  # noqa: F401  # each of them registers its own
    accepted,
    calls,
    endings,
    extras,
    failures,
    frames,
    lives,
    load,
    logprobs,
    masks,
    shape,
    streams,
    usage,
)
from tests.conformance.running.monitor.cases.load import load as load_with, told
from tests.conformance.running.monitor.cases.register import CASES
from tests.conformance.running.monitor.cases.right import RIGHT
from tests.conformance.running.monitor.made import INFO, LIFE, generated, outputs, refused, request, seen

STUCK = grpc.StatusCode.UNAVAILABLE
EVERY: tuple[Invariant[Any], ...] = (*ANSWERS, *FAILURES, *CALLS, *STREAMS)
NAMED = {invariant.name: invariant for invariant in EVERY}
BROKEN = [(name, wrong, make) for name, cases in CASES.items() for wrong, make in cases]


def fires(invariant: Invariant[Any], exchange: Exchange, info: pb.GetEngineInfoResponse) -> bool:
    handles = handles_of(exchange, info.config) if is_multiplexed(exchange) else None
    answers, failed = _taken_apart(Seen(exchange, info), handles)
    things: dict[int, list[Any]] = {
        id(ANSWERS): answers,
        id(FAILURES): failed,
        id(CALLS): [Seen(exchange, info)],
        id(STREAMS): [handles] if handles else [],
    }
    (kind,) = (kind for kind in (ANSWERS, FAILURES, CALLS, STREAMS) if invariant in kind)
    for thing in things[id(kind)]:
        try:
            invariant.function(thing)
        except Violation:
            return True
    return False


def test_every_invariant_has_a_name_of_its_own_and_an_exchange_that_breaks_it() -> None:
    assert len(NAMED) == len(EVERY) >= 60
    assert sorted(CASES) == sorted(NAMED)


def test_every_invariant_is_a_sentence_of_the_contract_and_stands_on_others() -> None:
    for invariant in EVERY:
        assert {invariant.id, *invariant.needs} <= set(requirements())


@pytest.mark.parametrize("kind", [ANSWERS, FAILURES, CALLS, STREAMS])
def test_what_an_invariant_stands_on_is_looked_at_before(kind: list[Invariant[Any]]) -> None:
    ids = [invariant.id for invariant in kind]
    for place, invariant in enumerate(kind):
        for need in {*invariant.needs} & {*ids}:
            assert need in ids[:place], f"{invariant.name} stands on {need}"


@pytest.mark.parametrize(
    ("name", "wrong", "make"), BROKEN, ids=[f"{name}: {wrong}" for name, wrong, _ in BROKEN]
)
def test_an_invariant_fires_on_what_breaks_it(
    name: str, wrong: str, make: Callable[[], tuple[Exchange, pb.GetEngineInfoResponse]]
) -> None:
    exchange, info = make()
    assert fires(NAMED[name], exchange, info)
    # And in company: it, or something that it stands on, is what the run is told.
    told = {line.partition(":")[0] for line in seen(exchange, info)}
    assert told & {NAMED[name].id, *NAMED[name].needs}


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_right_is_passed_over(name: str) -> None:
    made = RIGHT[name]()
    exchange, info = made if isinstance(made, tuple) else (made, INFO)
    assert seen(exchange, info) == []


def test_a_bad_word_without_tokens_forbids_nothing() -> None:
    asked = request(bad_words_token_ids=[pb.TokenSequence()])
    assert not fires(NAMED["bad_words_do_not_come"], generated(asked, outputs(asked)), INFO)


def test_any_right_answer_is_passed_over_and_any_token_that_is_lost_is_seen() -> None:
    for seed in range(100):
        asked, made, lost = drawn_answer(random.Random(seed))
        assert seen(generated(asked, made)) == [], f"seed {seed}"
        del made[lost]
        assert seen(generated(asked, made)), f"seed {seed}"


def drawn_answer(
    draw: random.Random,
) -> tuple[pb.GenerateRequest, list[pb.LLMEngineOutput], int]:
    """A request, a right answer, and the place of an output that may be lost."""
    count, run = draw.randint(1, 4), draw.randint(1, 5)
    tokens = [[draw.randint(3, 99) for _ in range(draw.randint(3, 9))] for _ in range(count)]
    # A stop that only comes last, where a choice is shorter than it might be.
    for ids in tokens:
        ids[-1] = 120
    handed_in = [pb.ResumedChoice(generated_token_ids=[4, 5])] if draw.random() < 0.5 else []
    asked = request(
        n=count,
        max_tokens=20,
        stop_token_ids=[119, 120],
        logprobs=draw.choice([None, 0, 3]),
        resume=pb.Resume(choices=handed_in) if handed_in else None,
    )
    made = outputs(asked, tokens, [pb.FINISH_REASON_STOP] * count, run)
    return asked, made, draw.choice([at for at, output in enumerate(made) if not output.finish_reason] or [0])


def test_what_stands_on_something_broken_is_not_said_as_well() -> None:
    made = outputs(request())
    made.append(made[-1])
    assert [line[:6] for line in seen(generated(request(), made))] == ["STR-02"]


def test_what_stands_on_what_cannot_be_told_is_not_said_either() -> None:
    asked = request(n=2, resume=pb.Resume(choices=[pb.ResumedChoice(generated_token_ids=[8, 9])]))
    made = outputs(asked, ((11, 12), (11, 12, 13, 14)))
    for output in made:
        output.first_output_position += 1
    # STR-06 stands on RES-06, and what is said of usage and ends stands on STR-06.
    made[-1].completion_usage.completion_tokens += 1
    assert [line[:6] for line in seen(generated(asked, made))] == ["RES-06"]


def test_what_is_refused_behind_a_message_was_not_accepted() -> None:
    asked = request(request_id="r 1", top_p=0.0)
    exchange = refused(asked, pb.ErrorDetail(reason=pb.ERROR_REASON_INVALID_REQUEST, field="request_id"))
    exchange.arrived = generated(asked, outputs(asked)[:1]).arrived
    assert seen(exchange) == []
    cut = refused(asked, pb.ErrorDetail(reason=pb.ERROR_REASON_STUCK, retryable=True), STUCK)
    cut.arrived = exchange.arrived
    assert sorted(line[:6] for line in seen(cut)) == ["ERR-05", "ERR-27"]


def test_an_exchange_is_looked_at_once_whoever_shows_it() -> None:
    monitor, exchange = Monitor(), generated(request(), [])
    for check in ("LIM-01", "LIM-02"):
        monitor.watch(check, [exchange], INFO, exchange.target)
    assert monitor.watched == 1
    assert [(found.check, found.count) for found in monitor.findings.values()] == [("LIM-01", 1)]


def test_what_shows_nothing_wrong_is_not_kept() -> None:
    monitor = Monitor()
    right, wrong = generated(request(), outputs(request())), generated(request(), [])
    kept = [weakref.ref(right), weakref.ref(wrong)]
    monitor.watch("LIM-01", [right, wrong], INFO, "")
    del right, wrong
    gc.collect()
    assert [exchange() is not None for exchange in kept] == [False, True]


def test_the_first_finding_stays_and_others_are_counted() -> None:
    monitor = Monitor()
    for check in ("LIM-01", "LIM-02"):
        monitor.watch(check, [generated(request(), [])], INFO, "")
    assert [(found.check, found.count) for found in monitor.findings.values()] == [("LIM-01", 2)]


def looked(started_at: float, told_at: float, **counted: object) -> Exchange:
    exchange = told(load_with(**counted))
    exchange.started_at, exchange.arrived[0].at = started_at, told_at
    return exchange


def test_what_is_counted_goes_on_from_the_load_before_the_call() -> None:
    one = looked(1.0, 2.0, preemptions=3, engine_lifetime_id=LIFE)
    beside = looked(1.5, 2.5, preemptions=2, engine_lifetime_id=LIFE)
    later = looked(3.0, 4.0, preemptions=3, engine_lifetime_id=LIFE)
    another_life = looked(5.0, 6.0, engine_lifetime_id="another")
    monitor = Monitor()
    monitor.watch("INF-13", [later, one, beside, another_life], pb.GetEngineInfoResponse(), "")
    assert not monitor.findings
    back = looked(7.0, 8.0, preemptions=2, engine_lifetime_id=LIFE)
    monitor.watch("INF-13", [one, back], pb.GetEngineInfoResponse(), "")
    assert list(monitor.findings) == ["INF-13"]


def test_another_server_is_not_judged_by_the_facts_of_this_one() -> None:
    made = outputs(request())
    made[1].token_ids[0] = 4000
    exchange = generated(request(), made)
    exchange.target = "unix:/other"
    monitor = Monitor()
    monitor.watch("DIS-01", [exchange], INFO, "unix:/this")
    assert not monitor.findings
    monitor.watch("DIS-01", [generated(request(), made)], INFO, "")
    assert list(monitor.findings) == ["INF-05"]
