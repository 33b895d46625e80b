"""How the servers of this project listen: the address and the reflection.

gRPC alone would take over a live socket and leave the socket open to everyone. Knows nothing about RPCs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import grpc

from enginewire.listening.sockets import AddressError, UnixSocket

if TYPE_CHECKING:
    from enginewire.tls.listener import ListenerTls


@contextmanager
def listen(
    server: grpc.aio.Server, uds: Path, host: str, port: int | None, tls: ListenerTls | None = None
) -> Iterator[str]:
    """Bind to the socket, or to a port if there is one; yields the target that reaches it.

    A port speaks TLS if there is any, a socket never. Raises AddressError.
    """
    if port is not None:
        yield bind_tcp(server, host, port, tls)
        return
    with closing(UnixSocket(uds)) as socket:
        try:
            with socket.private():
                server.add_insecure_port(socket.target)
        except RuntimeError as error:
            raise AddressError(f"{uds}: cannot be listened on") from error
        yield socket.target


def bind_tcp(server: grpc.aio.Server, host: str, port: int, tls: ListenerTls | None = None) -> str:
    """Bind to a port that nobody else has; returns host:port. Raises AddressError."""
    bracketed = f"[{host}]" if ":" in host else host
    address = f"{bracketed}:{port}"
    try:
        bound = (
            server.add_secure_port(address, tls.grpc_credentials())
            if tls
            else server.add_insecure_port(address)
        )
        return f"{bracketed}:{bound}"
    except RuntimeError as error:
        raise AddressError(f"{bracketed}:{port}: address already in use or not available") from error


def add_reflection(server: grpc.aio.Server, *services: str) -> None:
    """Tell tools like grpcurl which services there are."""
    from grpc_reflection.v1alpha import reflection

    reflection.enable_server_reflection((*services, reflection.SERVICE_NAME), server)
