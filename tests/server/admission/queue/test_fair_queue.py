"""Slots go to callers by their weights, to the most urgent first, and each comes back once."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from enginewire.access.allowance import Allowance
from enginewire.access.caller import NOBODY, Party
from enginewire.server.admission.queue import fair_queue
from enginewire.server.admission.queue.fair_queue import CLASS_SECONDS, FairQueue, Place
from tests.long import examples


def party(name: str, weight: float = 1.0) -> Party:
    return Party(name, name, Allowance(weight=weight))


class Queue:
    """A fair queue, and what it has started."""

    def __init__(self, num_slots: int, max_share: float = 1.0) -> None:
        self.queue = FairQueue(max_share)
        self.queue.num_slots = num_slots
        self.started: list[Place] = []

    def come(self, who: Party, slots: int = 1, tokens: int = 100, **more: float) -> Place:
        place = Place(who, slots, tokens, 1, lambda: self.started.append(place), **more)
        if self.queue.would_wait(place):
            self.queue.wait(place)
        else:
            self.queue.take(place)
            self.started.append(place)
        return place

    def end(self, place: Place, tokens: int | None = None) -> None:
        self.queue.leave(place, place.tokens if tokens is None else tokens)
        self.queue.start_next()


def test_a_newcomer_is_next_behind_five_hundred_of_another() -> None:
    queue = Queue(4)
    flood = [queue.come(party("flood")) for _ in range(500)]
    mine = queue.come(party("mine"))
    queue.end(flood[0])
    assert queue.started[-1] is mine


def test_one_caller_leaves_slots_once_there_is_another() -> None:
    queue = Queue(8, max_share=0.75)
    alone = [queue.come(party("a")) for _ in range(10)]
    assert len(queue.started) == 8, "nobody else is there, and all is theirs"
    queue.come(party("b"))
    for place in alone[:4]:
        queue.end(place)
    assert queue.queue.num_used == 7, "6 of the first caller, 1 of the other"
    other = queue.come(party("c"))
    assert queue.started[-1] is other


def test_slots_that_are_free_at_once_are_filled_step_by_step_where_callers_share() -> None:
    """A step with all their prompts would be a long one for whoever comes meanwhile."""
    queue = Queue(16)
    flood = [queue.come(party("flood")) for _ in range(100)]
    queue.come(party("mine"))
    for place in flood[:14]:
        queue.queue.leave(place, place.tokens)
    started = []
    for _ in range(7):
        queue.queue.start_next()
        started.append(len(queue.started))
    assert started == [18, 20, 22, 24, 26, 28, 30]
    assert party("mine") in {place.party for place in queue.started[16:18]}, "in the first of these steps"


def test_one_caller_alone_has_all_slots_that_are_free_at_once() -> None:
    queue = Queue(16)
    flood = [queue.come(party("flood")) for _ in range(100)]
    for place in flood[:14]:
        queue.queue.leave(place, place.tokens)
    queue.queue.start_next()
    assert len(queue.started) == 30


def test_what_the_engine_refuses_keeps_nobody_waiting_for_a_step_that_never_comes() -> None:
    queue = Queue(2)
    first, _ = queue.come(party("a")), queue.come(party("a"))
    refused = [queue.come(party("b")) for _ in range(5)]
    for place in refused:
        place.start = lambda place=place: queue.queue.leave(place, 0)  # type: ignore[misc]  # bound now
    last = queue.come(party("b"))
    queue.end(first)
    assert queue.started[-1] is last


def test_who_has_been_away_has_not_saved_up() -> None:
    queue = Queue(1)
    running = queue.come(party("a"))
    queue.end(queue.come(party("b")))
    for _ in range(100):
        waiting = queue.come(party("a"))
        queue.end(running)
        running = waiting
    for _ in range(10):
        queue.come(party("a"))
        queue.come(party("b"))
    del queue.started[:]
    for _ in range(10):
        queue.end(running)
        running = queue.started[-1]
    assert Counter(place.party.key for place in queue.started) == {"a": 5, "b": 5}


@settings(max_examples=examples(40))
@given(st.integers(0, 10**6), st.integers(1, 5), st.booleans())
def test_service_follows_the_weights_whatever_requests_take(seed: int, weight: int, lies: bool) -> None:
    """Who always has more waiting gets tokens by weight, also if it says to need more than it does."""
    draw = random.Random(seed)
    queue, heavy, light = Queue(4), party("heavy", weight), party("light")
    takes: dict[Place, int] = {}

    def come(who: Party) -> None:
        tokens = draw.randint(10, 200)
        takes[queue.come(who, tokens=tokens * (20 if lies and who is light else 1))] = tokens

    for who in (heavy, light) * 20:
        come(who)
    served: Counter[str] = Counter()
    for _ in range(800):
        running = [place for place in queue.started if not place.is_closed]
        place = draw.choice(running)
        served[place.party.key] += takes[place]
        queue.end(place, takes[place])
        queue.started = [place for place in queue.started if not place.is_closed]
        come(place.party)
        come(draw.choice([heavy, light]))
    share = served["heavy"] / weight / served["light"]
    assert 0.8 < share < 1.25, served


def test_the_more_urgent_goes_first_whoever_asks_and_nobody_waits_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queue = Queue(1)
    running = queue.come(party("a"))
    late = queue.come(party("a"), priority=1, came_at=0.0)
    urgent = [queue.come(party("b"), priority=-1, came_at=1.0 + number) for number in range(5)]
    for place in urgent:
        queue.end(running)
        running = place
        assert queue.started[-1] is place
    # 60 s per class: what came so much earlier is not overtaken any more.
    queue.come(party("b"), priority=-1, came_at=2 * CLASS_SECONDS + 1)
    queue.end(running)
    assert queue.started[-1] is late


def test_a_jump_counts_among_ones_own_requests() -> None:
    queue = Queue(1)
    running = queue.come(party("a"))
    queue.come(party("a"), came_at=1.0)
    jumping = queue.come(party("a"), came_at=2.0, jump=5.0)
    queue.end(running)
    assert queue.started[-1] is jumping


def test_an_urgent_request_that_does_not_fit_is_not_overtaken_by_its_callers_others() -> None:
    queue = Queue(8, max_share=0.5)
    queue.come(party("b"))
    three = [queue.come(party("a")) for _ in range(3)]
    wide = queue.come(party("a"), slots=4, priority=-1)
    queue.come(party("a"))
    for place in three[:2]:
        queue.end(place)
        assert not wide.is_waiting or wide not in queue.started
    assert len(queue.started) == 4
    queue.end(three[2])
    assert queue.started[-1] is wide


def test_who_is_told_apart_from_nobody_never_waits_here() -> None:
    queue = Queue(2)
    for _ in range(5):
        queue.come(NOBODY)
    assert len(queue.started) == 5


def test_an_engine_that_names_no_number_of_sequences_gets_everything() -> None:
    queue = Queue(1)
    queue.queue.num_slots = None
    for _ in range(50):
        queue.come(party("a"))
    assert len(queue.started) == 50


def test_parties_that_others_name_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fair_queue, "MOST_PARTIES", 10)
    queue = Queue(1)
    stays = queue.come(party("stays"))
    waits = queue.come(party("waits"))
    for number in range(100):
        place = queue.come(party(f"t{number}"))
        queue.queue.leave(place, 0)
    assert len(queue.queue._shares) <= 11
    queue.end(stays)
    assert queue.started[-1] is waits


class Slots(RuleBasedStateMachine):
    """Requests come with some choices, and end choice by choice or at once, twice, running or waiting."""

    @initialize(num_slots=st.integers(1, 6), max_share=st.sampled_from([0.5, 0.875, 1.0]))
    def make(self, num_slots: int, max_share: float) -> None:
        self.queue = Queue(num_slots, max_share)
        self.places: list[Place] = []

    @rule(name=st.sampled_from("abc"), slots=st.integers(1, 4), priority=st.integers(-1, 1))
    def come(self, name: str, slots: int, priority: int) -> None:
        self.places.append(self.queue.come(party(name), slots, priority=priority))

    @rule(which=st.integers(0, 50))
    def end_a_choice(self, which: int) -> None:
        running = [place for place in self.places if not place.is_waiting]
        if running:
            self.queue.queue.free(running[which % len(running)], 1)
            self.queue.queue.start_next()

    @rule(which=st.integers(0, 50), tokens=st.sampled_from([None, 0, 7]), again=st.booleans())
    def end(self, which: int, tokens: int | None, again: bool) -> None:
        if self.places:
            place = self.places.pop(which % len(self.places))
            for _ in range(1 + again):
                self.queue.queue.leave(place, tokens)
            self.queue.queue.start_next()

    @invariant()
    def slots_are_those_of_what_runs(self) -> None:
        queue = self.queue.queue
        running = [place for place in self.places if not place.is_waiting]
        waiting = [place for place in self.places if place.is_waiting]
        assert queue.num_used == sum(place.slots for place in running)
        assert queue.num_waiting == len(waiting)
        assert queue.waiting_tokens == len(waiting)
        assert set(running) <= set(self.queue.started)

    @invariant()
    def nobody_waits_for_slots_that_nobody_uses(self) -> None:
        queue = self.queue.queue
        assert queue.num_slots is not None
        if queue.num_used == 0:
            assert queue.num_waiting == 0

    def teardown(self) -> None:
        for place in self.places:
            self.queue.queue.leave(place, 0)
        assert (self.queue.queue.num_used, self.queue.queue.num_waiting) == (0, 0)
        for share in self.queue.queue._shares.values():
            assert (share.slots, share.num_waiting, share.waiting) == (0, 0, {})
            assert share.expected == pytest.approx(0, abs=1e-6)


Slots.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
TestSlots = Slots.TestCase
