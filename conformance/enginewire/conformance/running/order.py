"""In which order checks run: none before one that it needs. Judges nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

from enginewire.conformance.running.registry import Check

ROOT: Final = "INF-01"
"""What every other check needs."""


def needs_of(check: Check) -> tuple[str, ...]:
    """The keys of the checks that have to hold first."""
    return check.needs if check.key == ROOT else (ROOT, *check.needs)


def needs_first(checks: Iterable[Check]) -> list[Check]:
    """The same checks in the same order, but none before one that it needs."""
    due, placed = {check.key: check for check in checks}, dict[str, Check]()

    def place(check: Check) -> None:
        for need in check.needs:
            if need in due and need not in placed:
                place(due[need])
        placed[check.key] = check

    for check in due.values():
        place(check)
    return list(placed.values())


async def beside_each_other(
    checks: Sequence[Check], together: int, run: Callable[[Check], Awaitable[None]]
) -> None:
    """Run so many at a time, each as soon as those that it needs are over."""
    slots = asyncio.Semaphore(together)
    tasks: dict[str, asyncio.Task[None]] = {}

    async def one(check: Check) -> None:
        await asyncio.gather(*(tasks[need] for need in needs_of(check) if need in tasks))
        async with slots:
            await run(check)

    async with asyncio.TaskGroup() as group:
        for check in checks:
            tasks[check.key] = group.create_task(one(check))
