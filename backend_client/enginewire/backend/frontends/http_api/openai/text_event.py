"""An event of which nothing but its text changes: written once, and then only filled in.

Knows nothing about the shape of the JSON.
"""

from __future__ import annotations

from typing import Final

import orjson

ANY_TEXT: Final = "\0"
"""Stands where the text goes."""


class TextEvent:
    """`written` with other texts."""

    __slots__ = ("_after", "_before")

    def __init__(self, written: bytes) -> None:
        """`written` is JSON with ANY_TEXT in it."""
        self._before, _, self._after = written.rpartition(orjson.dumps(ANY_TEXT))

    def of(self, text: str) -> bytes:
        """The event with this text."""
        return b"%b%b%b" % (self._before, orjson.dumps(text), self._after)
