"""API keys: as options and files have them, hashed, and read again after their file has changed.

Knows nothing about gRPC and HTTP.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Final

from enginewire.access.roles import WORDS, Role
from enginewire.files.watched import WatchedFiles

# The characters are those of bearer tokens, RFC 6750: a colon can only be the one behind a role.
KEY: Final = re.compile(r"[A-Za-z0-9._~+/=-]{16,512}")
KEY_WORDS: Final = "16 to 512 letters, digits or ._~+/=-, such as `openssl rand -hex 32` prints"
LINE: Final = re.compile(r"(\w+)\s+sha256:([0-9a-f]{64})")
LINE_WORDS: Final = "a role and a hash: infer sha256:<64 hexadecimal digits>"
MOST_FILE_BYTES: Final = 2**20


class InvalidKeys(Exception):
    """Keys that cannot be used; the message names the option and never a key."""


@dataclass(frozen=True, slots=True)
class ApiKey:
    """What is kept of a key."""

    digest: bytes = field(repr=False)
    role: Role


class ApiKeys:
    """The keys of one server. Threads may share it; the file is looked at when somebody asks."""

    def __init__(self, given: Iterable[str] = (), file: Path | None = None) -> None:
        """`given` are keys as `key_of` takes them, `file` has hashes. Raises InvalidKeys."""
        self._given = tuple(key_of(text, number) for number, text in enumerate(given, 1))
        self._file = file
        self._keys = WatchedFiles([file] if file else [], self._read, "list of keys", InvalidKeys)

    def find(self, key: str) -> ApiKey | None:
        """The key, if it is one of these. How long it takes says nothing about which, or how nearly."""
        digest = digest_of(key)
        found = None
        for each in self._keys.current():
            if hmac.compare_digest(each.digest, digest):
                found = each
        return found

    def _read(self) -> tuple[ApiKey, ...]:
        """Raises InvalidKeys."""
        keys = (*self._given, *(read_file(self._file) if self._file else ()))
        if len({each.digest for each in keys}) < len(keys):
            raise InvalidKeys(f"{self._file or '--api-key'}: the same key twice; each has one role")
        return keys


def digest_of(key: str) -> bytes:
    """What is kept and compared. Keys are drawn, not thought up: a slow hash would guard nothing more."""
    return sha256(key.encode("utf-8", "surrogatepass")).digest()


def key_of(text: str, number: int) -> ApiKey:
    """`KEY`, which may infer, or `role:KEY`; the number says which it is. Raises InvalidKeys."""
    word, colon, rest = text.partition(":")
    role, key = (WORDS.get(word), rest) if colon else (Role.INFER, word)
    if role is None or not KEY.fullmatch(key):
        roles = ", ".join(WORDS)
        raise InvalidKeys(
            f"--api-key: number {number} must be KEY or ROLE:KEY, with ROLE one of {roles}, KEY {KEY_WORDS}"
        )
    return ApiKey(digest_of(key), role)


def read_file(path: Path) -> tuple[ApiKey, ...]:
    """A key per line, hashed; `#` begins a comment. Raises InvalidKeys."""
    where = f"--api-key-file: {path}"
    try:
        with path.open(encoding="ascii") as file:
            text = file.read(MOST_FILE_BYTES + 1)
    except OSError as error:
        raise InvalidKeys(f"{where}: {(error.strerror or str(error)).lower()}") from error
    except UnicodeDecodeError as error:
        raise InvalidKeys(f"{where}: must be ASCII") from error
    if len(text) > MOST_FILE_BYTES:
        raise InvalidKeys(f"{where}: must have at most {MOST_FILE_BYTES} bytes")
    lines = ((number, line.partition("#")[0].strip()) for number, line in enumerate(text.splitlines(), 1))
    keys = tuple(_line(where, number, line) for number, line in lines if line)
    if not keys:
        raise InvalidKeys(f"{where}: has no key; each line must be {LINE_WORDS}")
    return keys


def _line(where: str, number: int, line: str) -> ApiKey:
    match = LINE.fullmatch(line)
    role = WORDS.get(match[1]) if match else None
    if match is None or role is None:
        raise InvalidKeys(f"{where}: line {number} must be {LINE_WORDS}, with a role of {', '.join(WORDS)}")
    return ApiKey(bytes.fromhex(match[2]), role)
