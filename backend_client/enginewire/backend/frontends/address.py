"""Where the backend listens: a Unix socket for its owner only, or a TCP port nobody else has.

gRPC alone would take over a live socket, share a port, and leave the socket open to everyone. Knows
nothing about RPCs.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import grpc

from enginewire.backend.config import ServeOptions
from enginewire.trusted_paths import UntrustedPath, check_folder

# sizeof(sockaddr_un.sun_path) - 1 on Linux.
MAX_PATH_BYTES: Final = 107


class AddressError(Exception):
    """We cannot listen there; the message says why."""


@contextlib.contextmanager
def listen(server: grpc.aio.Server, options: ServeOptions) -> Iterator[str]:
    """Bind the server; yields the target that reaches it. Raises AddressError."""
    if options.port is None:
        with _unix_socket(server, options.uds.absolute()) as target:
            yield target
    else:
        yield bind_tcp(server, options.host, options.port)


def bind_tcp(server: grpc.aio.Server, host: str, port: int) -> str:
    """Bind the server to a port that nobody else has; returns host:port. Raises AddressError."""
    bracketed = f"[{host}]" if ":" in host else host
    try:
        return f"{bracketed}:{server.add_insecure_port(f'{bracketed}:{port}')}"
    except RuntimeError as error:
        raise AddressError(f"{bracketed}:{port}: address already in use or not available") from error


@contextlib.contextmanager
def _unix_socket(server: grpc.aio.Server, path: Path) -> Iterator[str]:
    if len(os.fsencode(path)) > MAX_PATH_BYTES:
        raise AddressError(f"{path}: longer than {MAX_PATH_BYTES} bytes; choose a shorter --uds")
    with _locked(path):
        _remove_stale(path)
        old_umask = os.umask(0o177)
        try:
            server.add_insecure_port(f"unix:{path}")
        except RuntimeError as error:
            raise AddressError(f"{path}: cannot be bound") from error
        finally:
            os.umask(old_umask)
        try:
            yield f"unix:{path}"
        finally:
            path.unlink(missing_ok=True)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock file beside the socket: of two servers that start together, one gets it."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        check_folder(path.parent)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        lock = os.open(f"{path}.lock", flags, 0o600)
    except UntrustedPath as error:
        raise AddressError(str(error)) from error
    except OSError as error:
        raise AddressError(f"{path}: {error.strerror}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(lock)
        raise AddressError(f"{path}: in use by another server") from error
    try:
        yield
    finally:
        os.close(lock)


def _remove_stale(path: Path) -> None:
    """Remove a socket that nobody answers at."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise AddressError(f"{path}: exists and is not a socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        with contextlib.suppress(ConnectionRefusedError):
            probe.connect(os.fspath(path))
            raise AddressError(f"{path}: in use by another server")
    path.unlink()
