"""The event loop of the programs: uvloop's where that is installed, else asyncio's own.

Waking whoever waits for a token costs more than decoding it, and uvloop does that in C. Code that is
imported runs on the loop of its caller.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


def run(program: Coroutine[Any, Any, Result]) -> Result:
    """`asyncio.run` on the quickest loop there is."""
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(program)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
