"""Where the server listens: a Unix socket of its own, or a TCP port nobody else has.

Guards against what grpc does silently: stealing a live socket, sharing a port, world-writable
sockets, unlinking a path that belongs to another process. Knows nothing about RPCs.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from enginewire.files.trusted_paths import UntrustedPath, check_folder

# sizeof(sockaddr_un.sun_path) - 1 on Linux.
MAX_PATH_BYTES: Final = 107


IN_USE: Final = "in use by another server; choose another address with --uds or --port"


class AddressError(Exception):
    """The server cannot listen there; the message says why."""


class UnixSocket:
    """A socket path held for the life of the process by a lock file beside it."""

    def __init__(self, path: Path) -> None:
        """Check the path and take the lock. Raises AddressError."""
        self.path = path.absolute()
        self.target = f"unix:{self.path}"
        self._inode: int | None = None
        if len(os.fsencode(self.path)) > MAX_PATH_BYTES:
            raise AddressError(f"{self.path}: longer than {MAX_PATH_BYTES} bytes; choose a shorter --uds")
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            check_folder(self.path.parent)
            self._lock = os.open(
                f"{self.path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
            )
        except UntrustedPath as error:
            raise AddressError(str(error)) from error
        except OSError as error:
            raise AddressError(f"{self.path}: {error.strerror}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._remove_stale()
        except OSError as error:
            os.close(self._lock)
            in_use = error.errno in (errno.EAGAIN, errno.EACCES)
            raise AddressError(f"{self.path}: {IN_USE if in_use else error.strerror}") from error
        except AddressError:
            os.close(self._lock)
            raise

    def _remove_stale(self) -> None:
        try:
            mode = self.path.lstat().st_mode
        except FileNotFoundError:
            return
        if not stat.S_ISSOCK(mode):
            raise AddressError(f"{self.path}: exists and is not a socket")
        if _answers(self.path):
            raise AddressError(f"{self.path}: {IN_USE}")
        self.path.unlink()

    @contextlib.contextmanager
    def private(self) -> Iterator[None]:
        """Bind inside this: the socket is readable and writable for its owner only, or AddressError."""
        old_umask = os.umask(0o177)
        try:
            yield
        finally:
            os.umask(old_umask)
        info = self.path.lstat()
        self._inode = info.st_ino
        if stat.S_IMODE(info.st_mode) & 0o077:
            self.close()
            raise AddressError(f"{self.path}: could not be made private")

    def close(self) -> None:
        """Unlink the socket if it is still ours, then release the lock."""
        with contextlib.suppress(FileNotFoundError):
            if self._inode is not None and self.path.lstat().st_ino == self._inode:
                self.path.unlink()
        os.close(self._lock)


def check_port_is_free(host: str, port: int) -> None:
    """Raise AddressError when something listens on host:port, before anything is loaded."""
    if port == 0:
        return
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            hint = "; choose another one with --port" if error.errno == errno.EADDRINUSE else ""
            raise AddressError(f"{host}:{port}: {reason}{hint}") from error


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(os.fspath(path))
        except OSError:
            return False
        return True
