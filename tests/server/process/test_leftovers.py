"""What stays in a process, such as a thread or a call, does not hold up its end."""

from __future__ import annotations

import asyncio
import contextlib
import threading

from enginewire.program import event_loop
from enginewire.server.process import leftovers


async def test_what_takes_no_notice_of_the_end_cannot_hold_it_up(monkeypatch):
    exits: list[int] = []
    monkeypatch.setattr(leftovers, "LAST_SECONDS", 0.05)
    monkeypatch.setattr("os._exit", exits.append)
    monkeypatch.setattr("threading.enumerate", lambda: [threading.main_thread()])
    may_end = asyncio.Event()

    async def stubborn() -> None:
        while not may_end.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await may_end.wait()

    task = asyncio.create_task(stubborn())
    await asyncio.sleep(0)
    await leftovers.leave_what_stays(70)
    assert exits == [70]
    may_end.set()
    await task
    await leftovers.leave_what_stays(0)
    assert exits == [70]


async def test_what_served_a_call_is_not_cut_off_in_its_last_steps(monkeypatch):
    """gRPC would print a traceback."""
    monkeypatch.setattr("threading.enumerate", lambda: [threading.main_thread()])

    async def last_steps() -> None:
        for _ in range(9):
            await asyncio.sleep(0)

    last_steps.__name__ = event_loop.CALL
    call = asyncio.create_task(last_steps())
    await leftovers.leave_what_stays(0)
    assert not call.cancelled()
