"""How the servers of this project listen: the address and the reflection.

gRPC alone would take over a live socket and leave the socket open to everyone. Knows nothing about RPCs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import grpc

from enginewire.sockets import AddressError, UnixSocket


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
