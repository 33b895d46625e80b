"""Runs the checks of backends and turns what they raise into the kit's one result model."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import replace
from typing import Final

from enginewire.conformance.client_side.checks import WAY_THROUGH, client_checks
from enginewire.conformance.client_side.context import ClientContext
from enginewire.conformance.client_side.run_options import RunOptions
from enginewire.conformance.client_side.stage.backends import RunningBackend, RunningBackends, Starter
from enginewire.conformance.requirements.requirement import Requirement, requirements
from enginewire.conformance.running import verdict
from enginewire.conformance.running.interruption import Interrupted, Interruption
from enginewire.conformance.running.outcome import FAILED, CutShort, Outcome, Report, Status
from enginewire.conformance.running.registry import Check, Phase
from enginewire.conformance.running.selection import Selection
from enginewire.conformance.session.session import Unreachable
from enginewire.conformance.wire.violation import Violation

GATE: Final = "backend"
CONCURRENCY: Final = 8

FAILING: Final = FAILED | {Status.ERROR}


async def judge(
    starter: Starter,
    selection: Selection,
    *,
    name: str = "a backend",
    invocation: str = "",
    time_scale: float = 1.0,
    multiplexed: bool = False,
    options: RunOptions | None = None,
    interruption: Interruption | None = None,
) -> Report:
    """Judge the backends that `starter` starts. Raises Unreachable when none of them listens.

    `multiplexed`: their engine offers GenerateMultiplexed too. Raises Interrupted before one listens.
    """
    started, interruption = time.monotonic(), interruption or Interruption()
    backends = RunningBackends(starter, time_scale, multiplexed=multiplexed, options=options)
    try:
        backend = await interruption.unless_asked(backends.shared())
        run = _Run(backends, selection)
        with suppress(Interrupted):
            await interruption.unless_asked(run.run())
        return Report(
            target=name,
            invocation=invocation,
            engine="a backend in front of the scripted engine",
            bounds=f"{backend.bounds.describe()}; {_drawn(backends.options)}",
            outcomes=verdict.in_order(run.outcomes(interruption.why), due()),
            seconds=time.monotonic() - started,
            cut_short=interruption.why,
        )
    finally:
        await backends.close()


def _drawn(options: RunOptions) -> str:
    return "one case" if options.case else f"drawn cases: {options.cases}, seed {options.seed}"


def due() -> list[Requirement]:
    """The requirements of backends; those of engine servers are not named."""
    return [requirement for requirement in requirements().values() if requirement.gate == GATE]


class _Run:
    """One run: first the check that all others need, then those beside each other."""

    def __init__(self, backends: RunningBackends, selection: Selection) -> None:
        self._backends = backends
        self._selection = replace(selection, phases=frozenset(Phase))
        self._slots = asyncio.Semaphore(CONCURRENCY)
        self._done: dict[str, Outcome] = {}

    def outcomes(self, why: CutShort | None) -> list[Outcome]:
        """Of all checks; those whose turn did not come say why."""
        return [self._done.get(check.key) or verdict.not_reached(check, why) for check in client_checks()]

    async def run(self) -> None:
        """Run all checks."""
        checks = {check.key: check for check in client_checks()}
        first = checks.pop(WAY_THROUGH)
        backend = await self._backends.shared()
        outcome = await self._repeat(first)
        backend.measure(outcome.exchanges)
        blocked = outcome.status is not Status.PASS
        if not blocked and (reason := self._why_not(first)):
            outcome = verdict.outcome(first, Status.NOT_RUN, reason)
        # Those that wait for long begin first, so that they wait beside the others.
        queue = sorted(checks.values(), key=lambda check: not check.is_costly)
        self._done[first.key] = outcome
        needed = WAY_THROUGH if blocked else ""
        await asyncio.gather(*(self._run(check, needed) for check in queue if not check.needs))
        later = [check for check in queue if check.needs]
        await asyncio.gather(*(self._run(check, needed or self._failed_need(check)) for check in later))

    def _failed_need(self, check: Check) -> str:
        """The first check that fails of those that this one needs: it would say the same again.

        Who needs an id needs all its checks, who needs a key that one alone.
        """
        failed = [key for key, each in self._done.items() if each.status in FAILING]
        return next((key for key in sorted(failed) if {key, key.partition("/")[0]} & {*check.needs}), "")

    async def _run(self, check: Check, needed: str) -> None:
        self._done[check.key] = await self._outcome_of(check, needed)

    async def _outcome_of(self, check: Check, needed: str) -> Outcome:
        if reason := self._why_not(check):
            return verdict.outcome(check, Status.NOT_RUN, reason)
        if needed:
            return verdict.outcome(check, Status.BLOCKED, f"{needed} has to hold first")
        async with self._slots:
            return await self._repeat(check)

    async def _repeat(self, check: Check) -> Outcome:
        return verdict.of_repetitions([await self._run_once(check) for _ in range(self._selection.repeat)])

    async def _run_once(self, check: Check) -> Outcome:
        if check.phase is not Phase.DESTRUCTIVE:
            return await self._judge(check, await self._backends.shared())
        try:
            backend = await self._backends.fresh(self._backends.engine())
        except Unreachable as reason:
            return verdict.failure(check, Violation(str(reason)))
        try:
            return await self._judge(check, backend)
        finally:
            await backend.stop()

    def _why_not(self, check: Check) -> str:
        return self._selection.why_not(requirements()[check.id], check)

    async def _judge(self, check: Check, backend: RunningBackend) -> Outcome:
        return await verdict.judged(check, ClientContext(self._backends, backend), backend.bounds.check)
