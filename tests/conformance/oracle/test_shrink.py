from __future__ import annotations

import time

from enginewire.conformance.oracle.case import Case
from enginewire.conformance.oracle.predict import is_possible
from enginewire.conformance.oracle.shrink import Patience, shrink, smaller
from tests.conformance.oracle.cases import OFFER, RUNS

LARGE = Case(
    max_tokens=8,
    prompt=1,
    min_tokens=4,
    eos_token_ids=(30, 31, 24),
    stop_token_ids=(*range(40, 60), 25),
    stream_interval=4,
    n=2,
    resumed=(3, 2),
    multiplexed=True,
    is_first=True,
    together=True,
)


class Planted:
    """A bug under a condition, and how often it was asked for."""

    def __init__(self, *options: str) -> None:
        self.options = set(options)
        self.asked = 0

    async def fails(self, case: Case) -> str | None:
        self.asked += 1
        return "planted" if self.options <= set(case.options) else None


def possible(case: Case) -> bool:
    return is_possible(case, RUNS[case.prompt], OFFER.eos_token_ids)


def patience(steps: int = 500) -> Patience:
    return Patience(steps, time.monotonic() + 600)


async def test_what_a_fault_does_not_need_is_taken_away() -> None:
    found = await shrink(LARGE, smaller, possible, Planted("stream_interval", "n").fails, patience())
    assert found.case.described == "max_tokens 1, stream_interval 4, n 2"
    assert found.fault == "planted"


async def test_lists_and_cuts_become_as_short_as_the_fault_allows() -> None:
    found = await shrink(LARGE, smaller, possible, Planted("stop_token_ids", "resumed").fails, patience())
    assert found.case.described == "max_tokens 1, stop_token_ids [25], resumed [1]"


async def test_a_fault_of_the_last_of_many_ids_keeps_as_many() -> None:
    async def fails(case: Case) -> bool | None:
        return (len(case.stop_token_ids) > 16 and case.stop_token_ids[-1] == 25) or None

    found = await shrink(LARGE, smaller, possible, fails, patience())
    assert (len(found.case.stop_token_ids), set(found.case.options)) == (17, {"max_tokens", "stop_token_ids"})


async def test_shrinking_ends_when_its_steps_are_used_up() -> None:
    planted = Planted("n")
    found = await shrink(LARGE, smaller, possible, planted.fails, patience(steps=3))
    assert planted.asked == 4
    assert found.fault == "planted"
    assert "n" in found.case.options


async def test_a_failure_that_does_not_come_again_has_no_smaller_case() -> None:
    found = await shrink(LARGE, smaller, possible, Planted("no such option").fails, patience())
    assert (found.case, found.fault) == (LARGE, None)
