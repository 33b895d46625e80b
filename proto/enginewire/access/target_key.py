"""The key that a program of ours brings to the servers it calls. Knows nothing about gRPC and HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from enginewire.access.api_keys import KEY, KEY_WORDS
from enginewire.access.known_callers import InvalidKeys
from enginewire.files.watched import WatchedFiles

OPTION: Final = "--target-api-key"
FILE_OPTION: Final = f"{OPTION}-file"


class TargetKey:
    """One key, or the one that a file holds now. Of a file that cannot be used counts what it held before."""

    def __init__(self, key: str = "", file: Path | None = None) -> None:
        """One of the two. Raises InvalidKeys, which never tells the key."""
        if bool(key) == (file is not None):
            raise InvalidKeys(f"{OPTION} and {FILE_OPTION}: one of them is needed")
        self._key = WatchedFiles(
            [file] if file else [],
            lambda: _read(file) if file else _checked(OPTION, key),
            "key",
            InvalidKeys,
        )

    def current(self) -> str:
        """The key for a call that begins now."""
        return self._key.current()

    @property
    def authorization(self) -> tuple[str, str]:
        """What a call brings, as a field of HTTP or of gRPC's metadata."""
        return "authorization", f"Bearer {self.current()}"


def _read(file: Path) -> str:
    """Raises InvalidKeys."""
    where = f"{FILE_OPTION}: {file}"
    try:
        return _checked(where, file.read_text(encoding="utf-8", errors="replace").strip())
    except OSError as error:
        raise InvalidKeys(f"{where}: {(error.strerror or str(error)).lower()}") from error


def _checked(where: str, key: str) -> str:
    if not KEY.fullmatch(key):
        raise InvalidKeys(f"{where}: must be {KEY_WORDS}")
    return key
