from __future__ import annotations

from dataclasses import replace

import pytest

from enginewire.conformance.checks.scheduling.concurrency import BEHAVED
from enginewire.conformance.proof.self_test import judge
from enginewire.conformance.reference.generation.job import Job
from enginewire.conformance.reference.server import Reference
from enginewire.conformance.reference.settings import Settings
from enginewire.conformance.running import verdict
from enginewire.conformance.running.outcome import Outcome, Status
from enginewire.conformance.running.registry import Phase
from enginewire.conformance.running.selection import Selection
from enginewire.conformance.session.bounds import Bounds
from enginewire.conformance.wire.methods import GENERATE
from tests.conformance.judging import judged
from tests.long import long


@pytest.fixture(autouse=True)
def every_call_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdict, "KEPT_CALLS", 1000)


class OneSlot(Reference):
    settings = replace(Settings(), max_num_seqs=1)


class StallsOnCancel(Reference):
    """Whoever runs when a call ends early gets nothing more."""

    _is_stalled = False

    def ended(self, job: Job) -> None:
        self._is_stalled |= "CON-04" in job.request_id and job.request_id in self.live
        super().ended(job)

    def has_room(self, job: Job) -> bool:
        return not self._is_stalled and super().has_room(job)


async def test_good_streams_beside_failures_have_as_long_as_their_check() -> None:
    report = await judged(selection=Selection(run=["CON-04"]))
    (outcome,) = [outcome for outcome in report.outcomes if outcome.key == "CON-04"]
    served = [each.timeout or 0.0 for each in outcome.exchanges if each.is_ok and each.method == GENERATE]
    assert (len(served), min(served) > Bounds().check) == (BEHAVED, True)


async def test_failures_wait_for_the_one_slot_there_is() -> None:
    outcome = await _failures_beside(OneSlot)
    good = [each for each in outcome.exchanges if each.timeout == 2 * Bounds().check]
    assert (outcome.status, len(good)) == (Status.PASS, 1)


@long
async def test_streams_that_stall_after_a_failure_are_disturbed() -> None:
    outcome = await _failures_beside(StallsOnCancel)
    assert outcome.message == "a stream brings nothing more after another request failed"


async def _failures_beside(server: type[Reference]) -> Outcome:
    report = await judge(server, frozenset({Phase.LOAD}), run=["CON-04"])
    (outcome,) = [outcome for outcome in report.outcomes if outcome.key == "CON-04"]
    return outcome
