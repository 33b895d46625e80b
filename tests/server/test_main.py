"""The command: bad options and engines end it with 2 before anything is opened."""

from __future__ import annotations

import asyncio
import contextlib
import threading

import pytest

from enginewire.program import event_loop
from enginewire.server import __main__ as program
from enginewire.server.__main__ import EXIT_USAGE, main


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--engine", "nonsense"], "--engine"),
        (["--engine", "mocker", "--port", "1", "--uds", "a.sock"], "exclude each other"),
        (["--engine", "mocker", "--host", "0.0.0.0"], "--allow-insecure"),
        (["--engine", "mocker", "--max-num-seqs", "0"], "max-num-seqs"),
        (["--engine", "mocker", "--no-such-flag"], "--no-such-flag"),
    ],
)
def test_bad_options_end_it_with_2_and_a_message(argv, message, capsys):
    with pytest.raises(SystemExit) as caught:
        main(argv)
    assert caught.value.code == EXIT_USAGE
    assert message in capsys.readouterr().err


def test_an_engine_that_cannot_be_made_ends_it_with_2_and_one_line(capsys, monkeypatch):
    monkeypatch.setattr("enginewire.program.logs.configure_logs", lambda level, style: None)
    assert main(["--engine", "no_such_module:Engine"]) == EXIT_USAGE
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("--engine no_such_module:Engine: no module named no_such_module: ")


async def test_what_takes_no_notice_of_the_end_cannot_hold_it_up(monkeypatch):
    exits: list[int] = []
    monkeypatch.setattr(program, "LAST_SECONDS", 0.05)
    monkeypatch.setattr("os._exit", exits.append)
    monkeypatch.setattr("threading.enumerate", lambda: [threading.main_thread()])
    may_end = asyncio.Event()

    async def stubborn() -> None:
        while not may_end.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await may_end.wait()

    task = asyncio.create_task(stubborn())
    await asyncio.sleep(0)
    await program._leave_what_stays(70)
    assert exits == [70]
    may_end.set()
    await task
    await program._leave_what_stays(0)
    assert exits == [70]


async def test_what_served_a_call_is_not_cut_off_in_its_last_steps(monkeypatch):
    """gRPC would print a traceback."""
    monkeypatch.setattr("threading.enumerate", lambda: [threading.main_thread()])

    async def last_steps() -> None:
        for _ in range(9):
            await asyncio.sleep(0)

    last_steps.__name__ = event_loop.CALL
    call = asyncio.create_task(last_steps())
    await program._leave_what_stays(0)
    assert not call.cancelled()
