"""Ends tasks that nobody waits for any more."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any


async def stop(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancel them and wait until they are gone; what they raise is lost."""
    some = list(tasks)
    for task in some:
        task.cancel()
    await asyncio.gather(*some, return_exceptions=True)
