"""Calls into an engine, which may raise anything or never end, while the shell has to go on.

What went wrong is in the log. Knows nothing about what the calls are for.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

Answer = TypeVar("Answer")

log = logging.getLogger(__name__)


class EngineCallFailed(Exception):
    """A call cannot be made, or raised what is no Exception, such as SystemExit; the message says which."""


async def answer_of(name: str, call: Callable[[], Awaitable[Answer]]) -> Answer:
    """What the call named `name` returns. Raises what it raises, as an Exception: none may end the server."""
    try:
        answer = call()
        if not inspect.isawaitable(answer):
            what = type(answer).__name__
            raise EngineCallFailed(f"{name} must be an `async def`: it returned {what}, nothing to await")
        return await answer
    except (Exception, asyncio.CancelledError):
        raise
    except BaseException as error:
        raise EngineCallFailed(f"{name} raised {type(error).__name__}: {error}") from error


async def returned(name: str, call: Callable[[], Awaitable[None]]) -> bool:
    """Make the call named `name`; False when it raised, which the log then says.

    SystemExit and the like are no exception: an engine must not end the server half way.
    """
    try:
        await call()
    except BaseException as error:  # the outermost boundary of a call into foreign code
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
            raise  # it is the caller who was cancelled, not something of the engine's
        log.error("the engine's %s failed; going on without it", name, exc_info=error)
        return False
    return True


async def returned_within(seconds: float, name: str, call: Callable[[], Awaitable[None]]) -> bool:
    """`returned`, or False when the call takes longer: then it is cancelled and left behind."""
    work = asyncio.create_task(returned(name, call), name=f"engine {name}")
    await asyncio.wait([work], timeout=seconds)
    if not work.done():
        log.error("the engine's %s did not end within %g s; going on without it", name, seconds)
        work.cancel()
        return False
    return work.result()
