"""API keys and other callers that are known: as options and a file have them, read again after it has
changed.

Knows nothing about gRPC and HTTP.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import Final

from enginewire.access.known_callers import ApiKey, InvalidKeys, KnownCallers, read_file
from enginewire.access.roles import WORDS, Role
from enginewire.files.watched import WatchedFiles

# The characters are those of bearer tokens, RFC 6750: a colon can only be the one behind a role.
KEY: Final = re.compile(r"[A-Za-z0-9._~+/=-]{16,512}")
KEY_WORDS: Final = "16 to 512 letters, digits or ._~+/=-, such as `openssl rand -hex 32` prints"


class ApiKeys:
    """The callers that one server knows. Threads may share it; the file is looked at when somebody asks.

    `are_needed`: callers without a key are refused. Whether that is so is settled at the start.
    """

    def __init__(self, given: Iterable[str] = (), file: Path | None = None) -> None:
        """`given` are keys as `key_of` takes them, `file` has hashes. Raises InvalidKeys."""
        self._given = tuple(key_of(text, number) for number, text in enumerate(given, 1))
        self._file = file
        self.are_needed: bool | None = None
        self._known = WatchedFiles([file] if file else [], self._read, "list of keys", InvalidKeys)
        self.are_needed = bool(self.known.keys)

    @property
    def known(self) -> KnownCallers:
        """What counts now."""
        return self._known.current()

    def find(self, key: str) -> ApiKey | None:
        """The key, if it is one of these. How long it takes says nothing about which, or how nearly."""
        digest = digest_of(key)
        found = None
        for each in self.known.keys:
            if hmac.compare_digest(each.digest, digest):
                found = each
        return found

    def _read(self) -> KnownCallers:
        """Raises InvalidKeys."""
        known = read_file(self._file) if self._file else KnownCallers()
        keys = (*self._given, *known.keys)
        if len({each.digest for each in keys}) < len(keys):
            raise InvalidKeys(f"{self._file or '--api-key'}: the same key twice; each has one role")
        # Who takes the last key away shall not open the server, and who adds the first not close it to
        # callers.
        if self.are_needed is not None and self.are_needed != bool(keys):
            raise InvalidKeys(
                f"--api-key-file: {self._file}: whether keys are needed changes with a restart only"
            )
        return KnownCallers(keys, known.certificates, known.tenants)


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
