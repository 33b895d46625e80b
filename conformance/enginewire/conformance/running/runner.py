"""Runs checks in phases and turns what they raise into outcomes.

Within a phase checks run concurrently, then those that have to be alone, one by one. Knows no single
requirement except the one everything needs: a target that says who it is.
"""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from enginewire.conformance.requirements.profiles import BARE
from enginewire.conformance.requirements.requirement import requirements
from enginewire.conformance.running import verdict
from enginewire.conformance.running.accompanied import Accompanied
from enginewire.conformance.running.gates import why_closed
from enginewire.conformance.running.interruption import Interrupted, Interruption, Life, died
from enginewire.conformance.running.monitor.watch import SHARED, Monitor, stands_on
from enginewire.conformance.running.order import ROOT, beside_each_other, needs_first, needs_of
from enginewire.conformance.running.outcome import IN_PART, NEEDS_LAUNCH, Outcome, Report, Status
from enginewire.conformance.running.registry import OVERLOADED, REFUSED, Check, Phase
from enginewire.conformance.running.room import excused, num_together
from enginewire.conformance.running.selection import Selection
from enginewire.conformance.session.company import ALONE, Company
from enginewire.conformance.session.context import Context
from enginewire.conformance.session.session import Launcher, Session, Unreachable
from enginewire.conformance.wire.exchange import Exchange
from enginewire.conformance.wire.violation import Violation

NOT_ALONE: Final = (
    "the server has {number} requests of somebody else: what reads its load, fills its slots or measures "
    "time, and fails, counts for nothing"
)

ENOUGH: Final = 64
"""Tokens of an answer that leave hardly anything out."""
SLOW: Final = (
    "a token takes {ms:.0f} ms: answers have at most {most} tokens, and what is repeated is repeated less; "
    "the report says where, and --patience gives more time"
)
SLOWER: Final = (
    "the target is much slower than it was, as when a machine gets busy; judged again: {keys} ({bounds})"
)
JUDGED_AGAIN: Final = frozenset({Status.FAIL, Status.WARN})
OPEN: Final = JUDGED_AGAIN | {Status.BLOCKED}
"""What may become another verdict when checks are judged again."""


@dataclass
class Runner:
    """One run of some checks against one target."""

    session: Session
    checks: Sequence[Check]
    selection: Selection
    invocation: str = ""
    watch: Callable[[Outcome, int], None] = lambda outcome, left: None
    """Told of each outcome when it is there, and how many are still to come."""
    say: Callable[[str], None] = lambda text: None
    """Told what somebody who watches should know before anything is judged."""
    interruption: Interruption = field(default_factory=Interruption)
    life: Life | None = None
    """Of the shared server; its end ends the run."""

    def __post_init__(self) -> None:
        self.life = self.life or Life(self.session.connection)
        self._outcomes: dict[str, Outcome] = {}
        self._running: list[str] = []
        self._left = 0
        self._is_ended = False
        self._monitor = Monitor()
        self._accompanied = Accompanied(self.session, self._judge_again)

    async def run(self) -> Report:
        """Run everything that was selected. Raises Unreachable; a target that answers is judged."""
        started = time.monotonic()
        try:
            await self.interruption.unless_asked(self._run_all())
        except Interrupted:
            self._close_books()
        finally:
            await self.session.close()
            self._watch(SHARED, self.session, self.session.exchanges)
        return self._report(time.monotonic() - started)

    async def _run_all(self) -> None:
        await self.session.open(self.say)
        if self.session.others:
            self.say(NOT_ALONE.format(number=self.session.others))
        if (most := self.session.bounds.tokens_with_patience) < ENOUGH:
            self.say(SLOW.format(ms=1000 * self.session.bounds.least_itl, most=most))
        await self._run_root()
        self._left = sum(check.key != ROOT and self._decided(check) is None for check in self.checks)
        for phase in Phase:
            if phase is Phase.DESTRUCTIVE:
                await self._run_in_company()
            await self._run_phase(phase)

    def _close_books(self) -> None:
        for check in self.checks:
            if check.key not in self._outcomes:
                decided = self._decided(check) if ROOT in self._outcomes else None
                self._outcomes[check.key] = decided or verdict.not_reached(check, self.interruption.why)

    async def _run_root(self) -> None:
        """Everything else needs it, even to know which gates are open; so no option leaves it out."""
        for check in self.checks:
            if check.key == ROOT:
                outcome = await self._run(check)
                self._tell(outcome)
                reason = self.selection.why_not(outcome.requirement, check)
                if reason and outcome.status is Status.PASS:
                    # Otherwise a selection that matches nothing would look like a success.
                    outcome = verdict.outcome(check, Status.NOT_RUN, reason)
                self._outcomes[ROOT] = outcome

    async def _run_phase(self, phase: Phase) -> None:
        due = []
        for check in (check for check in self.checks if check.phase is phase and check.key != ROOT):
            if (outcome := self._decided(check)) is not None:
                self._outcomes[check.key] = outcome
            else:
                due.append(check)
        beside = [check for check in due if not self._runs_alone(check)]
        await (self._run_apart if phase >= Phase.DESTRUCTIVE else self._run_together)(beside)
        for check in needs_first(check for check in due if self._runs_alone(check)):
            await self._run_and_keep(check)
            self._tell(self._outcomes[check.key])

    async def _run_in_company(self) -> None:
        passed = [
            (check, outcome.seconds)
            for check in self.checks
            if (outcome := self._outcomes.get(check.key)) and outcome.status is Status.PASS
        ]
        await self._accompanied.run(passed, self._num_together)

    async def _judge_again(self, check: Check, company: Company, longest: float) -> Outcome:
        self._running.append(check.key)
        judged = await self._judge(check, self.session, company, longest)
        outcome = await self._unless_disturbed(check, judged)
        await self._end_with_the_server(outcome)
        self._running.remove(check.key)
        if company.members:
            self.watch(outcome, self._left)
        return outcome

    @property
    def _num_together(self) -> int:
        return 1 if self.selection.one_by_one else num_together(self.session.info.config)

    def _runs_alone(self, check: Check) -> bool:
        has_no_server = check.phase >= Phase.DESTRUCTIVE and not self.session.launcher
        return check.alone or has_no_server or self.selection.one_by_one

    async def _run_together(self, checks: list[Check]) -> None:
        """All of them; what fails while the target got slower once more, one by one, with what needs it."""
        await beside_each_other(checks, self._num_together, self._run_beside_others)
        failed = [check for check in checks if self._outcomes[check.key].status in JUDGED_AGAIN]
        await self._settle(checks, again=await self._may_be_the_machine(failed))

    async def _run_apart(self, checks: list[Check]) -> None:
        """Each on a server of its own; what fails beside others that start once more, one by one."""
        together = self.session.launcher.at_a_time if self.session.launcher else 1
        await beside_each_other(checks, together, self._run_beside_others)
        await self._settle(checks, again=together > 1 and self.selection.judges_again)

    async def _settle(self, checks: list[Check], *, again: bool) -> None:
        """Tell of what is still open, judged again where that may change it."""
        left = [check for check in checks if self._outcomes[check.key].status in OPEN]
        if again:
            await beside_each_other(left, 1, self._run_and_keep)
        for check in left:
            self._tell(self._outcomes[check.key])

    async def _run_beside_others(self, check: Check) -> None:
        await self._run_and_keep(check)
        if self._outcomes[check.key].status not in OPEN:
            self._tell(self._outcomes[check.key])

    async def _run_and_keep(self, check: Check) -> None:
        self._outcomes[check.key] = await self._run(check)

    async def _may_be_the_machine(self, failed: Sequence[Check]) -> bool:
        """True when they failed at a target that got slower; from now on it has more time."""
        if not (failed and self.selection.judges_again and await self.session.is_slower()):
            return False
        keys = ", ".join(check.key for check in failed)
        self.say(SLOWER.format(keys=keys, bounds=self.session.bounds.describe()))
        return True

    def _decided(self, check: Check) -> Outcome | None:
        """The outcome of a check that does not run, None for one that does."""
        requirement = requirements()[check.id]
        if reason := self.selection.why_not(requirement, check):
            return verdict.outcome(check, Status.NOT_RUN, reason)
        if self._blocker(check) == ROOT:
            return verdict.outcome(check, Status.BLOCKED, f"{ROOT} has to hold first")
        for gate in (requirement.gate, check.gate):
            if reason := why_closed(gate, self.session.info.config, self.session.declared):
                return replace(verdict.outcome(check, Status.NOT_APPLICABLE, reason), closed_gate=gate)
        if check.unless and not why_closed(check.unless, self.session.info.config, self.session.declared):
            return verdict.outcome(check, Status.NOT_APPLICABLE, f"Capabilities.{check.unless} is advertised")
        return None

    async def _run(self, check: Check) -> Outcome:
        self._running.append(check.key)
        outcome = await self._outcome_of(check)
        if check.phase < Phase.DESTRUCTIVE:
            await self._end_with_the_server(outcome)
        self._running.remove(check.key)
        return outcome

    def _tell(self, outcome: Outcome) -> None:
        self._left -= outcome.key != ROOT
        self.watch(outcome, self._left)

    async def _end_with_the_server(self, outcome: Outcome) -> None:
        """What fails because nobody is there any more, now and later, says nothing about a requirement."""
        how = await self.life.end_after(outcome) if self.life else ""
        if how:
            self.interruption.end(died(self._running, how))
            await asyncio.Event().wait()  # The run cancels this check with all others.

    async def _outcome_of(self, check: Check) -> Outcome:
        if blocker := self._blocker(check):
            return verdict.outcome(check, Status.BLOCKED, f"{blocker} has to hold first")
        return verdict.of_repetitions([await self._run_once(check) for _ in range(self.selection.repeat)])

    def _blocker(self, check: Check) -> str:
        for need in needs_of(check):
            if need in self._outcomes and self._outcomes[need].status in verdict.BROKEN:
                return need
        return ""

    async def _run_once(self, check: Check) -> Outcome:
        if check.phase is not Phase.DESTRUCTIVE:
            return await self._judge_at_its_speed(check)
        if not self.session.launcher:
            if self._is_ended:
                ended = f"an earlier check ended this server: {NEEDS_LAUNCH}"
                return verdict.outcome(check, Status.NOT_RUN, ended)
            self._is_ended = True
            return await self._judge(check, self.session)
        return await self._run_on_fresh(check, self.session.launcher)

    async def _run_on_fresh(self, check: Check, launcher: Launcher) -> Outcome:
        """On a server of its own; one that never serves fails the check."""
        try:
            server = await launcher.launch()
            fresh = self.session.at(server.target)
            try:
                await fresh.open()
                return await self._judge(check, fresh)
            finally:
                await fresh.close()
                self._watch(check.key, fresh, fresh.exchanges)
                await server.stop()
        except Unreachable as reason:
            return verdict.failure(check, Violation(str(reason)))

    async def _judge_at_its_speed(self, check: Check) -> Outcome:
        """A failure of what measures time counts when the target is as fast as when it was measured."""
        outcome = await self._judge(check, self.session)
        failed = [check] if check.alone and outcome.status in JUDGED_AGAIN else []
        if await self._may_be_the_machine(failed):
            outcome = await self._judge(check, self.session)
        return await self._unless_disturbed(check, outcome)

    async def _unless_disturbed(self, check: Check, outcome: Outcome) -> Outcome:
        """What has to be alone, and fails while somebody else uses the server, says nothing about it."""
        is_sure = not check.alone or outcome.status not in JUDGED_AGAIN or not self.selection.judges_again
        return outcome if is_sure or not await self.session.is_found_shared() else verdict.disturbed(outcome)

    async def _judge(
        self, check: Check, session: Session, company: Company = ALONE, longest: float = 0.0
    ) -> Outcome:
        context = Context(session, check.key, company)
        outcome = await verdict.judged(check, context, longest or session.bounds.check)
        if OVERLOADED not in (check.id, *check.needs):
            outcome = excused(outcome, session.info.config)
        if outcome.status is Status.PASS and context.left_out:
            # A result that rests on less than usual says so.
            outcome = replace(outcome, message=f"{IN_PART}: {'; '.join(context.left_out)}")
        self._watch(check.key, session, outcome.exchanges)
        context.forget()
        return verdict.without_old_calls(outcome)

    def _watch(self, name: str, session: Session, exchanges: Iterable[Exchange]) -> None:
        self._monitor.watch(name, exchanges, session.info, session.connection.target)

    def _all_outcomes(self) -> Iterator[Outcome]:
        yield from map(self._with_negative, self._outcomes.values())
        yield from self._in_company()
        yield from self._seen()

    def _how_judged(self) -> Iterator[str]:
        yield self.session.bounds.describe()
        yield self.session.drawn
        if self._accompanied.count:
            yield f"{self._accompanied.count} times in company"

    def _in_company(self) -> Iterator[Outcome]:
        """What failed in company and was not left out."""
        for check, outcome in self._accompanied.found.items():
            if not self.selection.leaves_out(check):
                yield outcome

    def _seen(self) -> Iterator[Outcome]:
        """What the monitor found, of requirements that hold for this target and were not left out.

        What follows from the failure of a check is not told a second time.
        """
        info = self.session.info
        for finding in self._monitor.findings.values():
            check = verdict.seen_in_passing(finding.id, stands_on(finding.id))
            gate = requirements()[finding.id].gate
            is_closed = why_closed(gate, info.config, self.session.declared)
            if is_closed or self.selection.leaves_out(check) or self._blocker(check):
                continue
            outcome = verdict.of_problem(check, finding.problem)
            message = f"{outcome.message}, in the traffic of {finding.check}"
            message += f", {finding.count} times" if finding.count > 1 else ""
            traffic = "" if finding.check == SHARED else finding.check
            yield replace(outcome, message=message, traffic=traffic, exchanges=[finding.exchange])

    def _report(self, seconds: float) -> Report:
        info = self.session.info
        return Report(
            target=self.session.connection.target,
            invocation=self.invocation or f"--target {shlex.quote(self.session.connection.target)}",
            engine=f"{info.engine_name} {info.engine_version}, {info.config.model}".strip(" ,"),
            bounds="; ".join(filter(None, self._how_judged())),
            outcomes=verdict.in_order(self._all_outcomes(), requirements().values()),
            profile=BARE if self.selection.is_bare else "",
            watched=self._monitor.watched,
            seconds=seconds,
            cut_short=self.interruption.why,
        )

    def _with_negative(self, outcome: Outcome) -> Outcome:
        """A capability that is not advertised and was refused as it must be is a result, not a skip."""
        negative = self._outcomes.get(f"{REFUSED}/{outcome.closed_gate}")
        if not outcome.closed_gate or not negative or negative.status is not Status.PASS:
            return outcome
        return replace(outcome, status=Status.NEG_PASS, message=f"{outcome.message}; its use is refused")
