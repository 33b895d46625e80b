"""An engine that is correct and far away: the network is slow, and nothing of it is an alarm."""

from __future__ import annotations

import asyncio
import sys

from enginewire.conformance.checks import all_checks
from enginewire.conformance.reference.server import Reference
from enginewire.conformance.running.outcome import Status
from enginewire.conformance.running.runner import Runner
from enginewire.conformance.running.selection import Selection
from enginewire.conformance.running.servers.in_process import InProcess
from enginewire.conformance.session.session import Session
from enginewire.conformance.wire.connection import Connection
from tests.conformance.judging import statuses
from tests.long import long
from tests.repository import ROOT

ONE_WAY_SECONDS = "0.1"
SENSITIVE = ("STR-11", "STR-12/multiplexed", "CON-05", "MUX-12", "WLD-03")


@long
async def test_a_correct_engine_far_away_is_not_blamed() -> None:
    server = await InProcess(Reference()).start()
    network = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.conformance.far_away", server.target, ONE_WAY_SECONDS),
        stdout=asyncio.subprocess.PIPE,
        cwd=ROOT,
    )
    assert network.stdout
    address = (await network.stdout.readline()).decode().strip()
    session = Session(connection=Connection(target=address))
    report = await Runner(session, all_checks(), Selection(run=SENSITIVE)).run()
    network.terminate()
    await network.wait()
    await server.stop()
    assert session.bounds.ttft > 2 * float(ONE_WAY_SECONDS)
    assert list(report.unexpected) == []
    assert [key for key in SENSITIVE if statuses(report)[key] is not Status.PASS] == []
