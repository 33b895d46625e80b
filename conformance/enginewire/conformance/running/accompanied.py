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
from enginewire.conformance.session.company import ALONE, DIFFERENT, Company, draw
from enginewire.conformance.session.session import Session

IN_COMPANY: Final = "in-company"
"""The end of a key of what failed so: `USE-01/in-company`."""

WRONG: Final = frozenset({Status.FAIL, Status.WARN})

EFFORTS: Final = 1.2
"""For all of it; what is begun is judged to its end."""

Judge = Callable[[Check, Company], Awaitable[Outcome]]


@dataclass
class Accompanied:
    """The second half of a run. `judge` runs one check in some company, `together`: so many at a time."""

    session: Session
    judge: Judge
    together: int
    found: dict[Check, Outcome] = field(default_factory=dict)
    """By the check in company."""
    count: int = 0
    """How many were judged."""

    async def run(self, passed: Sequence[tuple[Check, float]]) -> None:
        """Each check that passed, with the seconds it took: the quick ones first, while there is time."""
        deadline = time.monotonic() + EFFORTS * self.session.bounds.effort
        slots = asyncio.Semaphore(self.together)
        due = [check for check, _ in sorted(passed, key=lambda each: each[1]) if is_comparable(check)]

        async def again(check: Check) -> None:
            for company in self._companies(check):
                async with slots:
                    if time.monotonic() < deadline and _named(check) not in self.found:
                        await self._look(check, company)

        await asyncio.gather(*(again(check) for check in due if not check.alone))
        for check in due:
            if check.alone:
                await again(check)

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
        outcome = await self.judge(_named(check), company)
        if outcome.status is Status.ERROR:
            self.found[_named(check)] = outcome
        if outcome.status in WRONG:
            await self._look_into(check, company)

    async def _look_into(self, check: Check, company: Company) -> None:
        """A failure counts when it comes again, and not without company. Names the fewest that bring it."""
        outcome = await self.judge(_named(check), company)
        if outcome.status not in WRONG or (await self.judge(check, ALONE)).status is not Status.PASS:
            return
        for member in company.members:
            fewer = company.without(member)
            again = await self.judge(_named(check), fewer) if fewer.members else None
            if again and again.status in WRONG:
                outcome, company = again, fewer
        message = f"{outcome.message}, beside {company} (seed {self.session.options.seed})"
        self.found[_named(check)] = replace(outcome, message=message, traffic=check.key)


def is_comparable(check: Check) -> bool:
    """True for what asks a server that serves, and whose requests may have company."""
    return check.phase is Phase.SAFE and check.in_company and not check.is_costly


def _named(check: Check) -> Check:
    return replace(check, variant="/".join(filter(None, (check.variant, IN_COMPANY))))
