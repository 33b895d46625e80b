from __future__ import annotations

from dataclasses import replace

import pytest

from enginewire.conformance.mutants.server.watch_load import WatchLeavesOutWhatComesTooSoon
from enginewire.conformance.reference.server import Reference
from enginewire.conformance.reference.settings import Settings
from enginewire.conformance.running.outcome import Status
from enginewire.conformance.running.selection import Selection
from tests.conformance.judging import judged, statuses
from tests.long import long

SLOW = replace(Settings(), first_token_seconds=0.5, step_seconds=0.3)


class Slow(Reference):
    settings = SLOW


class SlowAndBroken(WatchLeavesOutWhatComesTooSoon):
    settings = SLOW


@long
@pytest.mark.parametrize(("server", "verdict"), [(Slow, Status.PASS), (SlowAndBroken, Status.FAIL)])
async def test_changes_that_come_too_soon_are_asked_for_at_a_slow_engine_as_well(
    server: type[Reference], verdict: Status
) -> None:
    report = await judged(server, selection=Selection(run=["WLD-01", "WLD-02"], skip=["WLD-02/*"]))
    assert statuses(report)["WLD-02"] is verdict
