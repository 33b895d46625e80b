"""Runs the kit, or checks made up for a test, against a server in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from conformance.checks import all_checks
from conformance.connection import Connection
from conformance.in_process import InProcess, Served
from conformance.outcome import Report, Status
from conformance.reference.server import Reference
from conformance.registry import Check
from conformance.runner import Runner
from conformance.selection import Selection
from conformance.session import Session


async def judged(
    make: Callable[[], Served] = Reference,
    checks: Sequence[Check] | None = None,
    selection: Selection | None = None,
    time_scale: float = 1.0,
) -> Report:
    server = await InProcess(make()).start()
    try:
        session = Session(connection=Connection(target=server.target), time_scale=time_scale)
        return await Runner(session, checks or all_checks(), selection or Selection()).run()
    finally:
        await server.stop()


def statuses(report: Report) -> dict[str, Status]:
    return {outcome.key: outcome.status for outcome in report.outcomes}


def made_up(identifier: str, function: object, **fields: object) -> Check:
    return Check(identifier, function, **fields)  # type: ignore[arg-type]  # what a test needs
