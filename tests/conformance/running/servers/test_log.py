"""What the server printed comes beside the failure whose error id it names, and beside no other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from enginewire import v1 as pb
from enginewire.conformance.running.outcome import Outcome, Status
from enginewire.conformance.running.servers.log import MOST_CHARACTERS, with_log
from enginewire.conformance.wire.exchange import DETAILS_KEY, Exchange
from tests.conformance.report.reports import outcome


def failed(error_id: str, status: Status = Status.FAIL) -> Outcome:
    """One whose only call ended with an internal error of this id."""
    details = pb.Status()
    details.details.add().Pack(pb.ErrorDetail(metadata={"error_id": error_id}))
    trailer = ((DETAILS_KEY, details.SerializeToString()),)
    call = Exchange(method="EngineService.Generate", request=None, trailing_metadata=trailer)
    return replace(outcome(status), exchanges=[call])


LINES = [
    "internal error 12: first",
    "all is well",
    "internal error 34: second",
    "internal error 34: " + "x" * 2000,
]


def lines_with(word: str) -> list[str]:
    return [line for line in LINES if word in line]


def test_the_line_of_the_id_is_found() -> None:
    assert with_log(failed("12"), lines_with).log == "internal error 12: first"


def test_of_several_lines_the_last_is_taken_and_cut() -> None:
    assert with_log(failed("34"), lines_with).log == LINES[-1][:MOST_CHARACTERS]


@pytest.mark.parametrize(
    "silent", [failed("56"), failed(""), failed("12", Status.PASS), outcome(Status.FAIL)]
)
def test_nothing_is_said_about_anything_else(silent: Outcome) -> None:
    assert with_log(silent, lines_with) is silent
