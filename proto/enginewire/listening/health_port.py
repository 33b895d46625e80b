"""A port that tells whether a server is well and nothing else, for probes that know no TLS.

Knows nothing about how that is found out.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

import grpc

from enginewire.grpc_server import new_server, started
from enginewire.listening.binding import bind_tcp

# A probe names a service and gets a number.
MOST_BYTES: Final = 4096
MOST_STREAMS: Final = 64


@asynccontextmanager
async def health_port(add: Callable[[grpc.aio.Server], None], host: str, port: int) -> AsyncIterator[str]:
    """Serve inside the context what `add` registers; gives host:port. Raises AddressError."""
    server = new_server(MOST_BYTES, MOST_STREAMS)
    add(server)
    target = bind_tcp(server, host, port)
    async with started(server):
        yield target
