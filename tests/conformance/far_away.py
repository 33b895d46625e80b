"""A network that takes its time: `python -m tests.conformance.far_away TARGET SECONDS` prints an address.

Forwards TCP connections to TARGET; each byte arrives SECONDS later, in both directions.
"""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import suppress

from enginewire.conformance.wire.proxy import CHUNK, Proxy


class FarAway(Proxy):
    """A proxy whose bytes take a while."""

    seconds = 0.0

    async def _forward(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, to_client: bool
    ) -> None:
        on_its_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def arrive() -> None:
            while (due := await on_its_way.get())[1]:
                await asyncio.sleep(max(due[0] - time.monotonic(), 0.0))
                sink.write(due[1])
                await sink.drain()
            sink.close()

        arriving = asyncio.ensure_future(arrive())
        with suppress(OSError):
            while data := await source.read(CHUNK):
                on_its_way.put_nowait((time.monotonic() + self.seconds, data))
        on_its_way.put_nowait((0.0, b""))
        with suppress(OSError):
            await arriving


async def main(target: str, seconds: float) -> None:
    proxy = await FarAway.open(target)
    proxy.seconds = seconds
    print(proxy.target, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], float(sys.argv[2])))
