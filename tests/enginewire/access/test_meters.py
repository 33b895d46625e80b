"""What callers use, held against their limits: it comes back once, whatever happens to their requests."""

from __future__ import annotations

import math

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from enginewire.access.allowance import Allowance
from enginewire.access.caller import NOBODY, Party
from enginewire.access.meters import NOTHING, Meters, Need, OverLimit, Ticket

LIMITS = Allowance(max_parallel_requests=6, max_parallel_tokens=100, rpm_limit=12, tpm_limit=60)
PARTIES = [Party("a", "a", LIMITS), Party("b", "b", LIMITS)]
NEEDS = st.builds(Need, st.integers(1, 8), st.integers(0, 30), st.integers(0, 120), is_probe=st.booleans())


class Model:
    """One caller as the page describes it."""

    def __init__(self) -> None:
        self.requests = self.tokens = 0
        self.rpm, self.tpm = 12.0, 60.0

    def allows(self, need: Need) -> str:
        """The first limit that is in the way, "" for none."""
        if self.requests + need.requests > 6:
            return "max_parallel_requests"
        if self.tokens + need.tokens > 100:
            return "max_parallel_tokens"
        if self.rpm < need.requests:
            return "rpm_limit"
        is_out = self.tpm <= 0 or self.tpm < need.prompt_tokens
        return "tpm_limit" if is_out and not need.is_probe else ""


class Usages(RuleBasedStateMachine):
    """Requests come, end, are refused by the engine, and end twice; time passes."""

    @initialize()
    def make(self) -> None:
        self.now = 100.0
        self.meters = Meters(lambda: self.now)
        self.models = {party.key: Model() for party in PARTIES}
        self.live: list[tuple[Ticket, Model, Need]] = []

    @rule(party=st.sampled_from(PARTIES), need=NEEDS)
    def take(self, party: Party, need: Need) -> None:
        model = self.models[party.key]
        if expected := model.allows(need):
            with pytest.raises(OverLimit) as caught:
                self.meters.take(party, need)
            assert caught.value.limit == expected
            return
        self.live.append((self.meters.take(party, need), model, need))
        model.requests += need.requests
        model.tokens += need.tokens
        model.rpm -= need.requests
        model.tpm -= 0 if need.is_probe else need.prompt_tokens

    @rule(which=st.integers(0, 30), tokens=st.integers(0, 90), again=st.booleans())
    def end(self, which: int, tokens: int, again: bool) -> None:
        if self.live:
            ticket, model, need = self.live.pop(which % len(self.live))
            for _ in range(1 + again):
                ticket.close(tokens)
            model.requests -= need.requests
            model.tokens -= need.tokens
            model.tpm -= 0 if need.is_probe else tokens

    @rule(which=st.integers(0, 30))
    def undo(self, which: int) -> None:
        if self.live:
            ticket, model, need = self.live.pop(which % len(self.live))
            ticket.undo()
            ticket.undo()
            model.requests -= need.requests
            model.tokens -= need.tokens
            model.rpm = min(12.0, model.rpm + need.requests)
            model.tpm = min(60.0, model.tpm + (0 if need.is_probe else need.prompt_tokens))

    @rule(seconds=st.sampled_from([0.5, 5, 70]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        for model in self.models.values():
            model.rpm = min(12.0, model.rpm + seconds * 12 / 60)
            model.tpm = min(60.0, model.tpm + seconds * 60 / 60)

    @invariant()
    def what_is_left_is_what_the_model_has(self) -> None:
        for party in PARTIES:
            model, rates = self.models[party.key], self.meters.rates(party)
            assert self.meters.requests_of(party) == model.requests
            assert abs(rates["requests"].remaining - max(0, math.floor(model.rpm))) <= 1
            assert abs(rates["tokens"].remaining - max(0, math.floor(model.tpm))) <= 1


Usages.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
TestUsages = Usages.TestCase


def test_who_is_nobody_takes_nothing_and_has_no_limits() -> None:
    meters = Meters()
    assert meters.take(NOBODY, Need(10**6)) is NOTHING
    assert meters.rates(NOBODY) == {}


@pytest.mark.parametrize(
    ("allowance", "need", "seconds"),
    [
        (Allowance(rpm_limit=60), Need(1), 1.0),
        (Allowance(tpm_limit=600), Need(1, 600), 60.0),
        (Allowance(max_parallel_requests=1), Need(1), 1.0),
    ],
)
def test_a_caller_that_waits_as_long_as_it_was_told_is_let_in(
    allowance: Allowance, need: Need, seconds: float
) -> None:
    now = 0.0
    meters, party = Meters(lambda: now), Party("a", "a", allowance)
    for _ in range(60 if allowance.rpm_limit else 1):
        ticket = meters.take(party, need)
        if allowance.rpm_limit:
            ticket.close(0)
    with pytest.raises(OverLimit) as caught:
        meters.take(party, need)
    assert caught.value.retry_after == pytest.approx(seconds)
    ticket.close(0)
    now += caught.value.retry_after
    meters.take(party, need)


@pytest.mark.parametrize(
    ("allowance", "need"),
    [
        (Allowance(max_parallel_requests=3), Need(4)),
        (Allowance(max_parallel_tokens=9), Need(1, 5, 10)),
        (Allowance(rpm_limit=3), Need(4)),
        (Allowance(tpm_limit=9), Need(1, 10, 20)),
    ],
)
def test_a_request_that_is_too_much_alone_is_told_no_time(allowance: Allowance, need: Need) -> None:
    with pytest.raises(OverLimit, match="allowed") as caught:
        Meters().take(Party("a", "a", allowance), need)
    assert caught.value.retry_after is None


def test_callers_that_others_name_are_forgotten_when_they_use_nothing() -> None:
    now = 0.0
    meters = Meters(lambda: now)
    running = meters.take(Party("stays", allowance=Allowance(max_parallel_requests=1)), Need(1))
    for number in range(10_000):
        meters.take(Party(f"t{number}", allowance=Allowance(rpm_limit=10)), Need(1)).close(0)
        now += 1.0
    assert len(meters._usages) <= 4097
    with pytest.raises(OverLimit):
        meters.take(Party("stays", allowance=Allowance(max_parallel_requests=1)), Need(1))
    running.close(0)
