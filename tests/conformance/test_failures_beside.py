from __future__ import annotations

from conformance.bounds import Bounds
from conformance.checks.concurrency import BEHAVED
from conformance.methods import GENERATE
from conformance.selection import Selection
from tests.conformance.judging import judged


async def test_good_streams_beside_failures_have_as_long_as_their_check() -> None:
    report = await judged(selection=Selection(run=["CON-04"]))
    (outcome,) = [outcome for outcome in report.outcomes if outcome.key == "CON-04"]
    served = [each.timeout or 0.0 for each in outcome.exchanges if each.is_ok and each.method == GENERATE]
    assert (len(served), min(served) > Bounds().check) == (BEHAVED, True)
