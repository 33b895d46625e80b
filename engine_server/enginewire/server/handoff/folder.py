"""The private folder in which engines of one user hand KV over: one file per hand-off, taken once.

A file is known by a random name and by the digest of its header, both of which travel in the hand-off; a
path never does. Taking a hand-off is unlinking its file: of two takers the kernel lets one through. Each
prefill engine holds a lock file for its life, so that what a dead one left behind can be told and swept.

Every method may block on the file system for as long as that takes, and may be called on any thread.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Final

from enginewire.server.failures import HandoffInvalid
from enginewire.server.handoff.file_format import PREFIX, Header, MalformedHandoff, header_size

FIELD: Final = "prefill_result.handoff"
PARAMS: Final = re.compile(rb"enginewire-kv-1/([0-9a-f]{16}-[0-9a-f]{32})/([0-9a-f]{64})")
FILE: Final = re.compile(r"([0-9a-f]{16})-[0-9a-f]{32}\.(?:kv|part)")
LOCK: Final = re.compile(r"([0-9a-f]{16})\.lock")
READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
CREATE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class KvFolderError(Exception):
    """The folder cannot be used; the message is one line for the operator."""


class KvFolder:
    """An open folder. What this process writes there is its own until someone takes it."""

    def __init__(self, path: Path) -> None:
        """Make the folder if it is not there, and sweep it. Raises KvFolderError."""
        self._owner = secrets.token_hex(8)
        try:
            with contextlib.suppress(FileExistsError):
                path.mkdir(mode=0o700, parents=True)
            self._folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            raise KvFolderError(f"--kv-transfer-folder {path}: {error.strerror}") from error
        found = os.fstat(self._folder)
        if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
            os.close(self._folder)
            raise KvFolderError(f"--kv-transfer-folder {path}: must be yours alone (mode 0700)")
        with self._alone():
            self._lock = self._open(f"{self._owner}.lock", CREATE)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        self.sweep()

    def new_name(self) -> str:
        """A name that nobody can guess."""
        return f"{self._owner}-{secrets.token_hex(16)}"

    def write(self, name: str, header: Header, payload: memoryview) -> bytes:
        """Make a hand-off that can be taken from now on; returns what its taker has to know."""
        beginning = header.to_bytes()
        part = f"{name}.part"
        try:
            with os.fdopen(self._open(part, CREATE), "wb", buffering=0) as file:
                _write_all(file.fileno(), memoryview(beginning))
                _write_all(file.fileno(), payload)
            os.rename(part, f"{name}.kv", src_dir_fd=self._folder, dst_dir_fd=self._folder)
        except OSError:
            self._unlink(part)
            raise
        return f"enginewire-kv-1/{name}/{sha256(beginning).hexdigest()}".encode()

    def is_there(self, name: str) -> bool:
        """False once someone took it."""
        try:
            os.stat(f"{name}.kv", dir_fd=self._folder, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

    def remove(self, name: str) -> None:
        """Free a hand-off that may be gone already."""
        self._unlink(f"{name}.kv")

    def find(self, params: bytes) -> FoundHandoff:
        """Open a hand-off without taking it; raises HandoffInvalid."""
        match = PARAMS.fullmatch(params)
        if not match:
            raise invalid("not a hand-off of this kind of engine")
        name = f"{match[1].decode()}.kv"
        try:
            file = self._open(name, READ)
        except OSError as error:
            raise invalid("unknown, expired or consumed") from error
        found = FoundHandoff(file, lambda: self._unlink(name))
        try:
            found.check(match[2].decode())
        except BaseException:
            found.close()
            raise
        return found

    def sweep(self) -> None:
        """Remove what engines left behind that live no more."""
        with self._alone():
            names = os.listdir(self._folder)
            alive = {match[1] for name in names if (match := LOCK.fullmatch(name)) and self._is_held(name)}
            for name in names:
                match = FILE.fullmatch(name) or LOCK.fullmatch(name)
                if match and match[1] not in alive:
                    self._unlink(name)

    def close(self) -> None:
        """Remove all that this process still has there. Idempotent."""
        if self._folder < 0:
            return
        for name in os.listdir(self._folder):
            if name.startswith(self._owner):
                self._unlink(name)
        os.close(self._lock)
        os.close(self._folder)
        self._folder = -1

    def _is_held(self, name: str) -> bool:
        if name == f"{self._owner}.lock":
            return True
        try:
            lock = self._open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(lock)
        return False

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """A lock file that was made and is not held yet looks like that of a dead engine."""
        fcntl.flock(self._folder, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._folder, fcntl.LOCK_UN)

    def _open(self, name: str, flags: int) -> int:
        return os.open(name, flags, 0o600, dir_fd=self._folder)

    def _unlink(self, name: str) -> bool:
        try:
            os.unlink(name, dir_fd=self._folder)
        except FileNotFoundError:
            return False
        return True


class FoundHandoff:
    """An open hand-off that is still there for others until `take`."""

    header: Header

    def __init__(self, file: int, unlink: Callable[[], bool]) -> None:
        self._file = file
        self._unlink = unlink

    def check(self, digest: str) -> None:
        """Read the header; raises HandoffInvalid unless it is the one that was promised."""
        status = os.fstat(self._file)
        try:
            prefix = os.pread(self._file, PREFIX.size, 0)
            self._begin = header_size(prefix)
            beginning = os.pread(self._file, self._begin, 0)
            self.header = Header.from_bytes(beginning)
        except (MalformedHandoff, OSError) as error:
            raise invalid("not a hand-off of this kind of engine") from error
        whole = status.st_size == self._begin + self.header.payload_bytes
        is_own = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
        if sha256(beginning).hexdigest() != digest or not whole or not is_own:
            raise invalid("not what the prefill engine has handed over")
        if self.header.expires_at <= time.monotonic():
            raise invalid("unknown, expired or consumed")

    def take(self) -> None:
        """Make it ours; raises HandoffInvalid when another one was faster."""
        if not self._unlink():
            raise invalid("unknown, expired or consumed")

    def read(self) -> bytearray:
        """The raw part. Raises HandoffInvalid when it is not what the header says."""
        payload = bytearray(self.header.payload_bytes)
        rest, offset = memoryview(payload), self._begin
        while rest:
            count = os.preadv(self._file, [rest], offset)
            if not count:
                break
            rest, offset = rest[count:], offset + count
        if rest or sha256(payload).hexdigest() != self.header.payload:
            raise invalid("its keys and values are damaged")
        return payload

    def close(self) -> None:
        """Let it go; a taken one is gone for good."""
        os.close(self._file)


def invalid(why: str) -> HandoffInvalid:
    """The refusal of a hand-off."""
    return HandoffInvalid(f"{FIELD}: {why}", field=FIELD)


def _write_all(file: int, data: memoryview) -> None:
    while data:
        data = data[os.write(file, data) :]
