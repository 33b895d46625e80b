from __future__ import annotations

import asyncio
import io
import re

import pytest

from enginewire.conformance.report.progress import ERASE, Progress
from enginewire.conformance.running.outcome import Status
from tests.conformance.report.reports import outcome


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Log(io.StringIO):
    """Tells when something was written."""

    def __init__(self) -> None:
        super().__init__()
        self.is_written = asyncio.Event()

    def write(self, text: str) -> int:
        self.is_written.set()
        return super().write(text)


class NobodyReads(Terminal):
    def write(self, text: str) -> int:
        raise BrokenPipeError


async def test_a_terminal_shows_how_far_the_run_is_and_is_clean_afterwards() -> None:
    terminal = Terminal()
    async with Progress(terminal) as progress:
        progress(outcome(Status.PASS), 1)
        progress(outcome(Status.FAIL, "STR-02"), 0)
    assert [re.sub(r"about \d+", "about N", line) for line in terminal.getvalue().split(ERASE)[1:]] == [
        "1 of 2 judged, 0 failed, about N s to go; last: PASS STR-01",
        "2 of 2 judged, 1 failed; last: FAIL STR-02",
        "",
    ]


async def test_a_log_gets_a_line_now_and_then() -> None:
    log = Log()
    async with Progress(log, log_seconds=0.001) as progress:
        progress(outcome(Status.PASS), 0)
        await log.is_written.wait()
    assert log.getvalue().splitlines()[0] == "1 of 1 judged, 0 failed; last: PASS STR-01"
    assert ERASE not in log.getvalue()


async def test_what_is_judged_in_company_is_counted_apart() -> None:
    terminal = Terminal()
    async with Progress(terminal) as progress:
        progress(outcome(Status.PASS), 0)
        progress(outcome(Status.PASS, key="STR-01/in-company"), 0)
        progress(outcome(Status.FAIL, key="STR-01/in-company"), 0)
    assert terminal.getvalue().split(ERASE)[2:] == [
        "1 of 1 judged, 0 failed, 1 times in company; last: PASS STR-01/in-company",
        "1 of 1 judged, 0 failed, 2 times in company; last: FAIL STR-01/in-company",
        "",
    ]


async def test_what_is_over_soon_leaves_nothing_in_a_log() -> None:
    log = io.StringIO()
    async with Progress(log) as progress:
        progress(outcome(Status.PASS), 0)
    assert log.getvalue() == ""


async def test_a_run_goes_on_when_nobody_reads_how_far_it_is() -> None:
    async with Progress(NobodyReads()) as progress:
        progress(outcome(Status.PASS), 0)


@pytest.mark.parametrize(("output", "erased"), [(Terminal(), ERASE), (io.StringIO(), "")])
def test_what_a_watcher_should_know_has_a_line_of_its_own(output: io.StringIO, erased: str) -> None:
    Progress(output).say("beware")
    assert output.getvalue() == f"{erased}enginewire-conformance: beware\n"
