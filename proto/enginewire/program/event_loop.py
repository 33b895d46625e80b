"""The event loop of the programs: uvloop's where that is installed, else asyncio's own.

Waking whoever waits for a token costs more than decoding it, and uvloop does that in C. Code that is
imported runs on the loop of its caller.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from enginewire.program import systemd

Result = TypeVar("Result")

CALL: Final = "_schedule_rpc_coro"
"""What gRPC calls the coroutine behind a call."""
PATIENCE_SECONDS: Final = 1.0


def run(program: Coroutine[Any, Any, Result]) -> Result:
    """`asyncio.run` on the quickest loop there is; what serves calls may end before the loop does."""
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        result = runner.run(_watched(program))
        runner.run(last_calls())
        return result


async def _watched(program: Coroutine[Any, Any, Result]) -> Result:
    """The same under systemd's watchdog, if it has one."""
    if (seconds := systemd.seconds_between_signs()) is None:
        return await program
    showing_life = asyncio.create_task(systemd.show_life(seconds), name="signs of life")
    try:
        return await program
    finally:
        showing_life.cancel()


async def last_calls() -> None:
    """What served the calls of a stopped server may still clean up. gRPC prints what cancels that."""
    calls = [task for task in asyncio.all_tasks() if getattr(task.get_coro(), "__name__", "") == CALL]
    if calls:
        await asyncio.wait(calls, timeout=PATIENCE_SECONDS)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
