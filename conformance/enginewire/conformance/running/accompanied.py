"""Checks that passed, once more in company: what holds for a plain request may break beside other options.

Only what fails is told, under the key of the check with `/in-company`. Knows no requirement.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from enginewire.conformance.running.outcome import Outcome, Status
from enginewire.conformance.running.registry import Check, Phase
from enginewire.conformance.running.room import WRONG, found_no_room
from enginewire.conformance.session.company import ALONE, FULL, Company, draw
from enginewire.conformance.session.crowd import crowded
from enginewire.conformance.session.run_options import DIFFERENT
from enginewire.conformance.session.session import Session

IN_COMPANY: Final = "in-company"
"""The end of a key of what failed so: `USE-01/in-company`."""

EFFORTS: Final = 0.4
"""For all of it; what is begun is judged to its end."""

OF_A_CHECK: Final = 1 / 3
TIMES_ALONE: Final = 4
"""How long one look may take: a part of what a check may, or so many times what it took alone."""

Judge = Callable[[Check, Company, float], Awaitable[Outcome]]


@dataclass
class Accompanied:
    """The second half of a run. `judge` runs one check in some company, for at most so many seconds."""

    session: Session
    judge: Judge
    found: dict[Check, Outcome] = field(default_factory=dict)
    """By the check in company."""
    count: int = 0
    """How many were judged."""
    _suspects: list[tuple[Check, Company, Outcome]] = field(default_factory=list)
    """What failed in a full engine, and is judged once more in a calm one."""
    _slots: asyncio.Semaphore = field(default_factory=asyncio.Semaphore)
    _calm: list[tuple[Check, Company]] = field(default_factory=list)
    """What says nothing in a full engine, and meets the rest of its company without it."""
    _deadline: float = 0.0
    _alone: dict[str, float] = field(default_factory=dict)
    """Seconds that each check took without company."""

    async def run(self, passed: Sequence[tuple[Check, float]], together: int) -> None:
        """Each check that passed, with the seconds it took: the quick ones first, while there is time.

        `together`: so many at a time.
        """
        self._slots = asyncio.Semaphore(together)
        self._alone = {_named(check).key: seconds for check, seconds in passed}
        ordered = [check for check, _ in sorted(passed, key=lambda each: each[1]) if is_comparable(check)]
        due = [(check, company) for check in ordered for company in self._companies(check)]
        await self._look_at_all([(check, company) for check, company in due if FULL not in company.members])
        if among_others := [(check, company) for check, company in due if FULL in company.members]:
            async with crowded(self.session):
                await self._look_at_all(among_others)
            self._begin()
            for suspect in self._suspects:
                await self._look_into_suspect(*suspect)
            await self._look_at_all(self._calm)

    async def _look_at_all(self, due: Sequence[tuple[Check, Company]]) -> None:
        self._begin()

        async def look(check: Check, company: Company) -> None:
            async with self._slots:
                if not self._is_late and _named(check) not in self.found:
                    await self._look(check, company)

        await asyncio.gather(*(look(*each) for each in due if not each[0].alone))
        for each in due:
            if each[0].alone:
                await look(*each)

    def _begin(self) -> None:
        self._deadline = time.monotonic() + EFFORTS * self.session.bounds.effort

    async def _judged(self, check: Check, company: Company) -> Outcome:
        longest = self.session.bounds.check
        if company.members:
            longest = max(OF_A_CHECK * longest, TIMES_ALONE * self._alone[check.key])
        return await self.judge(check, company, longest)

    def _companies(self, check: Check) -> list[Company]:
        """The same for a check whatever else runs; two are such that nobody is missing in both."""
        options, config = self.session.options, self.session.info.config
        rng = random.Random(f"{options.seed}/{check.key}")
        pairs = rng.sample(range(0, DIFFERENT, 2), -(-options.companies // 2))
        chosen = [even + later for even in pairs for later in (0, 1)][: options.companies]
        companies = (draw(options.seed, number, config) for number in chosen)
        return [company for each in companies if (company := each.without(*check.not_beside)).members]

    async def _look(self, check: Check, company: Company) -> None:
        self.count += 1
        outcome = await self._judged(_named(check), company)
        if outcome.status is Status.ERROR:
            self.found[_named(check)] = outcome
        if outcome.status is Status.NOT_APPLICABLE and (calm := company.without(FULL)).members:
            self._calm += [(check, calm)] if calm != company else []
        if _is_wrong(outcome):
            await self._look_into(check, company)

    async def _look_into(self, check: Check, company: Company) -> None:
        """A failure counts when it comes again. Names the fewest that bring it, as far as there is time.

        What passed before and never passes again has been broken by what ran meanwhile.
        """
        outcome = await self._judged(_named(check), company)
        if not _is_wrong(outcome):
            return
        if FULL not in company.members and not await self._passes_alone(check):
            if _is_wrong(await self._judged(check, ALONE)):
                self._tell(check, f"{company}, and without from then on", outcome)
            return
        for member in company.members:
            fewer = company.without(member) if member != FULL else ALONE
            again = await self._judged(_named(check), fewer) if fewer.members and not self._is_late else None
            if again and _is_wrong(again):
                outcome, company = again, fewer
        if FULL in company.members:
            self._suspects.append((check, company, outcome))
        else:
            self._tell(check, str(company), outcome)

    async def _look_into_suspect(self, check: Check, company: Company, outcome: Outcome) -> None:
        """The others have gone: what fails without them as well is not for them."""
        if not await self._passes_alone(check):
            return
        calm = company.without(FULL)
        again = await self._judged(_named(check), calm) if calm.members and not self._is_late else None
        if again and _is_wrong(again):
            outcome, company = again, calm
        self._tell(check, str(company), outcome)

    @property
    def _is_late(self) -> bool:
        """A server that hangs in company would have each look at it last as long as it may."""
        return time.monotonic() >= self._deadline

    async def _passes_alone(self, check: Check) -> bool:
        return (await self._judged(check, ALONE)).status is Status.PASS

    def _tell(self, check: Check, company: str, outcome: Outcome) -> None:
        message = f"{outcome.message}, beside {company} (seed {self.session.options.seed})"
        self.found[_named(check)] = replace(outcome, message=message, traffic=check.key)


def _is_wrong(outcome: Outcome) -> bool:
    return outcome.status in WRONG and not found_no_room(outcome)


def is_comparable(check: Check) -> bool:
    """True for what asks a server that serves, and whose requests may have company."""
    return check.phase < Phase.DESTRUCTIVE and check.in_company


def _named(check: Check) -> Check:
    return replace(check, variant="/".join(filter(None, (check.variant, IN_COMPANY))))
