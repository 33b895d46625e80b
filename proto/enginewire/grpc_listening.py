"""How the servers of this project listen: gRPC's own options, the address, the reflection.

gRPC alone would take over a live socket, share a port, and leave the socket open to everyone. Knows nothing
about RPCs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

import grpc

from enginewire.sockets import AddressError, UnixSocket

MIN_KEEPALIVE_MS: Final = 1_000


def listening_options(max_message_bytes: int, max_concurrent_streams: int) -> list[tuple[str, int]]:
    """Key and value of each: sizes, streams, and how often either side pings."""
    return [
        # Two servers on one port would share its connections without any error.
        ("grpc.so_reuseport", 0),
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
    ]


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
