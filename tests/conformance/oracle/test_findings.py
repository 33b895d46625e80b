from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import pytest

from enginewire.conformance.checks import all_checks
from enginewire.conformance.mutants.mixes.mixed_endings import (
    LastEosIsLength,
    ResumedTokensFillTheWindowTwice,
)
from enginewire.conformance.mutants.options.limits import OneTooMany
from enginewire.conformance.oracle import findings
from enginewire.conformance.oracle.ask import Answer, Target
from enginewire.conformance.oracle.case import Case
from enginewire.conformance.oracle.findings import Failed
from enginewire.conformance.oracle.judge import Fault
from enginewire.conformance.oracle.shrink import Patience
from enginewire.conformance.reference.generation.choices import Ending
from enginewire.conformance.reference.generation.job import Choice
from enginewire.conformance.reference.server import Reference
from enginewire.conformance.reference.settings import Settings
from enginewire.conformance.report.human import render
from enginewire.conformance.report.reproduction import grpcurl_lines
from enginewire.conformance.running.outcome import Outcome, Report, Status
from enginewire.conformance.running.runner import Runner
from enginewire.conformance.running.selection import Selection
from enginewire.conformance.running.servers.in_process import InProcess
from enginewire.conformance.running.verdict import SEEN
from enginewire.conformance.session.run_options import RunOptions
from enginewire.conformance.session.session import Session
from enginewire.conformance.wire.connection import Connection
from enginewire.conformance.wire.exchange import Exchange
from tests.long import long, long_but


def is_seen(outcome: Outcome) -> bool:
    return outcome.key.endswith(f"/{SEEN}")


async def judged(make: type[Reference], *, seed: int = 1, cases: int = 64) -> Report:
    """By the drawn checks alone."""
    server = await InProcess(make()).start()
    try:
        options = RunOptions(seed=seed, cases=cases, companies=0)
        session = Session(connection=Connection(target=server.target), options=options)
        report = await Runner(session, all_checks(), Selection(run=("*/drawn",))).run()
        # Without what the monitor sees of the same traffic: that has tests of its own.
        return replace(report, outcomes=tuple(each for each in report.outcomes if not is_seen(each)))
    finally:
        await server.stop()


class Bare(Reference):
    settings = replace(Settings(), capabilities=())


class OneToken(Reference):
    """A model that knows one token."""

    def logits(self, tokens: Sequence[int], adapter: str = "") -> list[float]:
        return [20.0 * (token == 7) for token in range(self.config.vocab_size)]


class LeavesStopsOut(Reference):
    """Keeps stop ids from being chosen below min_tokens, as engines may."""

    def apply_masks(self, choice: Choice, logits: list[float]) -> None:
        super().apply_masks(choice, logits)
        request = choice.job.request
        if len(choice.tokens) + 1 < request.stop_conditions.min_tokens:
            for token in (*self.caller_stops(request), *self.system_stops(request)):
                logits[token] = float("-inf")


class Rounds(Reference):
    """Gives other tokens when the batch is large, and says that it may."""

    settings = replace(
        Settings(), capabilities=tuple(set(Settings().capabilities) - {"batch_invariant", "seed"})
    )

    def logits(self, tokens: Sequence[int], adapter: str = "") -> list[float]:
        return super().logits([*tokens, len(self.running) // 4], adapter)


class NoQueue(Reference):
    """Refuses what has to wait behind another one."""

    settings = replace(Settings(), max_queued=1)


SERVERS = [Reference, Bare, OneToken, LeavesStopsOut, Rounds, NoQueue]


@pytest.mark.parametrize("server", long_but([Reference, NoQueue], SERVERS))
async def test_a_correct_server_has_no_findings(server: type[Reference]) -> None:
    report = await judged(server)
    assert [f"{each.key}: {each.message}" for each in report.unexpected] == []


@long
async def test_another_seed_finds_nothing_either() -> None:
    assert (await judged(Reference, seed=1234)).unexpected == []


async def test_a_failure_is_told_in_its_smallest_form_with_its_seed_and_its_call() -> None:
    report = await judged(LastEosIsLength)
    [failed] = report.unexpected
    assert failed.key == "STP-04/drawn"
    assert (failed.expected.endswith("EOS"), failed.seen.endswith("LENGTH")) == (True, True)
    assert re.fullmatch(
        r"choice 0 .* \(max_tokens \d+, prompt 2, \w+ids(_hidden)? \[\d+\]; case \d+ of seed 1\)",
        failed.message,
    )
    assert "ids" in grpcurl_lines(report, failed)[0]


class WrongOnce(Reference):
    """Forgets the name of the first stop of its life."""

    is_right = False

    def stopped(self, choice: Choice, token: int) -> Ending:
        reason, match = super().stopped(choice, token)
        was_right, self.is_right = self.is_right, self.is_right or match is not None
        return reason, match if was_right else None


async def test_a_failure_that_does_not_come_again_says_so() -> None:
    found = (await judged(WrongOnce)).unexpected
    [failed] = [each for each in found if each.status is Status.FAIL]
    assert failed.key.startswith(("STP-03", "MUX-01", "RES-04"))
    assert "seed 1, once and not again)" in failed.message


async def test_greedy_runs_that_go_wrong_fail_one_check_and_not_all() -> None:
    assert [each.key for each in (await judged(OneTooMany)).unexpected] == ["INF-09/drawn"]


async def test_the_head_of_the_report_says_what_was_drawn() -> None:
    head = render(await judged(Reference, seed=5, cases=3)).splitlines()[1]
    assert head.endswith("drawn cases: 3, seed 5")


async def test_without_cases_the_drawn_checks_say_nothing() -> None:
    report = await judged(Reference, cases=0)
    found = {each.status for each in report.outcomes if each.key.endswith("/drawn")}
    assert found == {Status.NOT_APPLICABLE}


class Narrow(Reference):
    """Whose window is as long as a prompt and an answer of the kit."""

    settings = replace(Settings(), context_length=64)


class Wide(ResumedTokensFillTheWindowTwice):
    """Whose window is never filled."""

    settings = replace(Settings(), context_length=16384, total_blocks=8192)


@long
async def test_cases_fill_the_window_where_it_is_not_too_long() -> None:
    assert (await judged(Narrow)).unexpected == []
    [failed] = (await judged(ResumedTokensFillTheWindowTwice)).unexpected
    assert failed.key == "RES-06/drawn"
    assert re.search(r"max_tokens \d+, resumed \[\d+\]; case 30000\d of seed 1", failed.message)
    assert (await judged(Wide)).unexpected == []


async def test_what_there_is_no_time_to_look_into_is_not_told_beside_another_one_of_its_kind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def as_small_as_it_is(target: Target, failed: Failed, patience: Patience) -> Failed:
        return failed

    monkeypatch.setattr(findings, "_smallest", as_small_as_it_is)
    answer = Answer([], "OK", Exchange("EngineService.Generate", None))
    cases = (Case(max_tokens=2, stop_token_ids=(5,)), Case(max_tokens=2, multiplexed=True))
    faults = [Fault(rule, "is wrong", "", "") for rule in ("STP-01", "STP-03")]
    failed = [Failed(1, case, fault, answer, ()) for fault in faults for case in cases]
    now = time.monotonic()
    for deadline, expected in (
        (now + 60, ["MUX-01", "MUX-01", "STP-01", "STP-03"]),
        (now, ["STP-01", "STP-03"]),
    ):
        found = [each.id async for each in findings._explained(cast(Target, None), failed, deadline, 1)]
        assert sorted(found) == expected
