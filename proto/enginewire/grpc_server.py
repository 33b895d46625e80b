"""The gRPC servers of this project: gRPC's own options, and what it need not log.

gRPC alone would share a port with another server, and log an error when a caller leaves. Knows nothing about
addresses and RPCs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import grpc

MIN_KEEPALIVE_MS: Final = 1_000
MOST_PENDING: Final = 16_384
"""Calls that have come and that the event loop has not taken up yet, of all connections together."""


# Of gRPC's own, which names none of its modules.
LOGGER: Final = "grpc._cython.cygrpc"


def new_server(
    max_message_bytes: int,
    max_concurrent_streams: int,
    interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
) -> grpc.aio.Server:
    """A server with limits and keepalive as docs/contract.md has them; it listens nowhere yet."""
    return bare_server(
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", max_message_bytes),
        ("grpc.max_metadata_size", 16 * 1024),
        ("grpc.max_concurrent_streams", max_concurrent_streams),
        # From 1,000 on gRPC would turn away calls by chance, whosesoever they are, and not say why.
        ("grpc.server.max_pending_requests", MOST_PENDING),
        ("grpc.server.max_pending_requests_hard_limit", MOST_PENDING),
        # A client that vanished is noticed within 15 s; without ping_timeout it would take a minute.
        ("grpc.keepalive_time_ms", 10_000),
        ("grpc.keepalive_timeout_ms", 5_000),
        ("grpc.http2.ping_timeout_ms", 5_000),
        # A client's own keepalive must never cut a long prefill.
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", MIN_KEEPALIVE_MS),
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.server_handshake_timeout_ms", 10_000),
        interceptors=interceptors,
    )


def bare_server(
    *options: tuple[str, int], interceptors: Sequence[grpc.aio.ServerInterceptor] = ()
) -> grpc.aio.Server:
    """A server with these options alone. It shares no port, and logs no error when a caller leaves."""
    logging.getLogger(LOGGER).addFilter(_is_news)
    # Two servers on one port would share its connections without any error.
    return grpc.aio.server(options=[("grpc.so_reuseport", 0), *options], interceptors=interceptors)


@asynccontextmanager
async def started(server: grpc.aio.Server) -> AsyncIterator[None]:
    """It serves inside the context, at the addresses that it has, and stops at the end.

    gRPC cannot stop what has begun to start: whoever is cancelled meanwhile waits for the rest of the start.
    """
    starting = asyncio.ensure_future(server.start())
    try:
        await asyncio.shield(starting)
        yield
    finally:
        await asyncio.wait([starting])
        await server.stop(None)


def _is_news(record: logging.LogRecord) -> bool:
    """False for what gRPC could not send because the caller had left: it learns that only afterwards.

    A batch of operations that gRPC never began is a mistake of ours, and stays an error.
    """
    error = record.exc_info[1] if record.exc_info else None
    return not (isinstance(error, grpc.aio.InternalError) and 'Failed "execute_batch"' in str(error))
