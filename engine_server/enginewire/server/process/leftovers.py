"""What is left in a process that has nothing more to do, and may not hold up its end.

Knows nothing about the server.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from typing import Final

from enginewire.program import event_loop

LAST_SECONDS: Final = 1.0


async def leave_what_stays(exit_code: int) -> None:
    """End the process here when something would hold up its end.

    Such as a thread that still loads a model, or a call of an engine that takes no notice of being cancelled.
    """
    await event_loop.last_calls()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    _, left = await asyncio.wait(others, timeout=LAST_SECONDS) if others else (others, set())
    threads = [thread for thread in threading.enumerate() if thread is not threading.main_thread()]
    if left or not all(thread.daemon for thread in threads):
        logging.shutdown()
        os._exit(exit_code)
