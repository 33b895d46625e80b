"""What systemd hears of a program that it has started with Type=notify. Elsewhere nobody is told anything.

Knows nothing about what the programs do.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from typing import Final

READY: Final = "READY=1"
STOPPING: Final = "STOPPING=1"
ALIVE: Final = "WATCHDOG=1"


def tell(state: str) -> None:
    """Send one of the words above, if somebody listens. A message that cannot be sent is lost."""
    if not (address := os.environ.get("NOTIFY_SOCKET")):
        return
    # A name that begins with "@" is an abstract one.
    to = f"\0{address[1:]}" if address.startswith("@") else address
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(state.encode(), to)


def seconds_between_signs() -> float | None:
    """How often this program has to say that it is alive; None where nobody waits for that."""
    if os.environ.get("WATCHDOG_PID") not in (None, str(os.getpid())):
        return None
    microseconds = os.environ.get("WATCHDOG_USEC", "")
    # Twice as often as the limit, as sd_watchdog_enabled(3) recommends.
    return int(microseconds) / 2e6 if microseconds.isdecimal() and int(microseconds) else None


async def show_life(seconds: float) -> None:
    """Until it is cancelled: as long as the event loop turns."""
    while True:
        tell(ALIVE)
        await asyncio.sleep(seconds)
