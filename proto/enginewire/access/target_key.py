"""The key that a program of ours brings to the servers it calls. Knows nothing about gRPC and HTTP."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from enginewire.access.api_keys import KEY, KEY_WORDS
from enginewire.access.known_callers import InvalidKeys
from enginewire.files.watched import WatchedFiles

OPTION: Final = "--target-api-key"
KEY_OF_OTHERS: Final = re.compile(r"[!-~]{1,4096}")


class TargetKey:
    """One key, or the one that a file holds now. Of a file that cannot be used counts what it held before."""

    def __init__(
        self, key: str = "", file: Path | None = None, option: str = OPTION, *, of_others: bool = False
    ) -> None:
        """One of the two; `option` gives it, and with `-file` at its end the file.

        Keys `of_others` may be short. Raises InvalidKeys, which names the option and never tells the key.
        """
        if bool(key) == (file is not None):
            raise InvalidKeys(f"{option} and {option}-file: one of them is needed")
        check = _checked_of_others if of_others else _checked
        self._key = WatchedFiles(
            [file] if file else [],
            lambda: check(*(_content(file, f"{option}-file") if file else (option, key))),
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


def _content(file: Path, option: str) -> tuple[str, str]:
    """Where the key is, and what is there. Raises InvalidKeys."""
    where = f"{option}: {file}"
    try:
        return where, file.read_text(encoding="utf-8", errors="replace").strip()
    except OSError as error:
        raise InvalidKeys(f"{where}: {(error.strerror or str(error)).lower()}") from error


def _checked(where: str, key: str) -> str:
    if not KEY.fullmatch(key):
        raise InvalidKeys(f"{where}: must be {KEY_WORDS}")
    return key


def _checked_of_others(where: str, key: str) -> str:
    if not KEY_OF_OTHERS.fullmatch(key):
        raise InvalidKeys(f"{where}: must be 1 to 4096 visible ASCII characters")
    return key
