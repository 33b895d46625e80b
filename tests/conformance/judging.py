"""Runs the kit, or checks made up for a test, against a server in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from enginewire.conformance.checks import all_checks
from enginewire.conformance.reference.server import Reference
from enginewire.conformance.running.outcome import Report, Status
from enginewire.conformance.running.registry import Check
from enginewire.conformance.running.runner import Runner
from enginewire.conformance.running.selection import Selection
from enginewire.conformance.running.servers.in_process import InProcess, Served
from enginewire.conformance.session.run_options import RunOptions
from enginewire.conformance.session.session import Session
from enginewire.conformance.wire.connection import Connection

ALONE = RunOptions(companies=0)
"""Without company, which judges most checks three times: what passes in company has tests of its own."""


async def judged(
    make: Callable[[], Served] = Reference,
    checks: Sequence[Check] | None = None,
    selection: Selection | None = None,
    time_scale: float = 1.0,
    options: RunOptions = ALONE,
) -> Report:
    server = await InProcess(make()).start()
    try:
        connection = Connection(target=server.target)
        session = Session(connection=connection, time_scale=time_scale, options=options)
        return await Runner(session, checks or all_checks(), selection or Selection()).run()
    finally:
        await server.stop()


def statuses(report: Report) -> dict[str, Status]:
    return {outcome.key: outcome.status for outcome in report.outcomes}


def made_up(identifier: str, function: object, **fields: object) -> Check:
    return Check(identifier, function, **fields)  # type: ignore[arg-type]  # what a test needs
