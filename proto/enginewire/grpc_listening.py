"""The gRPC servers of this project: gRPC's own options, what it logs, the address, the reflection.

gRPC alone would take over a live socket, share a port, leave the socket open to everyone, and log an error
when a caller leaves. Knows nothing about RPCs.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

import grpc

from enginewire.sockets import AddressError, UnixSocket

MIN_KEEPALIVE_MS: Final = 1_000


# Of gRPC's own, which names none of its modules.
LOGGER: Final = "grpc._cython.cygrpc"


def new_server(max_message_bytes: int, max_concurrent_streams: int) -> grpc.aio.Server:
    """A server with limits and keepalive as docs/contract.md has them; it listens nowhere yet."""
    return bare_server(
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", max_message_bytes),
        ("grpc.max_metadata_size", 16 * 1024),
        ("grpc.max_concurrent_streams", max_concurrent_streams),
        # A client that vanished is noticed within 15 s; without ping_timeout it would take a minute.
        ("grpc.keepalive_time_ms", 10_000),
        ("grpc.keepalive_timeout_ms", 5_000),
        ("grpc.http2.ping_timeout_ms", 5_000),
        # A client's own keepalive must never cut a long prefill.
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", MIN_KEEPALIVE_MS),
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.server_handshake_timeout_ms", 10_000),
    )


def bare_server(*options: tuple[str, int]) -> grpc.aio.Server:
    """A server with these options alone. It shares no port, and logs no error when a caller leaves."""
    logging.getLogger(LOGGER).addFilter(_is_news)
    # Two servers on one port would share its connections without any error.
    return grpc.aio.server(options=[("grpc.so_reuseport", 0), *options])


def _is_news(record: logging.LogRecord) -> bool:
    """False for what gRPC could not send because the caller had left: it learns that only afterwards.

    A batch of operations that gRPC never began is a mistake of ours, and stays an error.
    """
    error = record.exc_info[1] if record.exc_info else None
    return not (isinstance(error, grpc.aio.InternalError) and 'Failed "execute_batch"' in str(error))


@contextmanager
def listen(server: grpc.aio.Server, uds: Path, host: str, port: int | None) -> Iterator[str]:
    """Bind to the socket, or to a port if there is one; yields the target that reaches it.

    Raises AddressError.
    """
    if port is not None:
        yield bind_tcp(server, host, port)
        return
    with closing(UnixSocket(uds)) as socket:
        try:
            with socket.private():
                server.add_insecure_port(socket.target)
        except RuntimeError as error:
            raise AddressError(f"{uds}: cannot be listened on") from error
        yield socket.target


def bind_tcp(server: grpc.aio.Server, host: str, port: int) -> str:
    """Bind to a port that nobody else has; returns host:port. Raises AddressError."""
    bracketed = f"[{host}]" if ":" in host else host
    try:
        return f"{bracketed}:{server.add_insecure_port(f'{bracketed}:{port}')}"
    except RuntimeError as error:
        raise AddressError(f"{bracketed}:{port}: address already in use or not available") from error


def add_reflection(server: grpc.aio.Server, *services: str) -> None:
    """Tell tools like grpcurl which services there are."""
    from grpc_reflection.v1alpha import reflection

    reflection.enable_server_reflection((*services, reflection.SERVICE_NAME), server)
