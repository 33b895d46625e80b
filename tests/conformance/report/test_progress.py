from __future__ import annotations

import io

from enginewire.conformance.report.progress import ERASE, Progress
from enginewire.conformance.running.outcome import Status
from tests.conformance.report.reports import outcome


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_how_far_the_run_is_and_is_clean_afterwards() -> None:
    terminal = Terminal()
    progress = Progress(terminal)
    progress(outcome(Status.PASS))
    progress(outcome(Status.FAIL, "STR-02"))
    progress.close()
    assert terminal.getvalue().split(ERASE)[1:] == [
        "1 judged, 0 failed; last: PASS STR-01",
        "2 judged, 1 failed; last: FAIL STR-02",
        "",
    ]


def test_a_file_gets_nothing() -> None:
    file = io.StringIO()
    progress = Progress(file)
    progress(outcome(Status.PASS))
    progress.close()
    assert file.getvalue() == ""
