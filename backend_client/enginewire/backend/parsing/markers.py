"""Text that arrives in pieces, and what at its end has to wait: half a marker, or white space.

Knows nothing about what markers mean.
"""

from __future__ import annotations


def begun(text: str, marker: str) -> int:
    """How many characters at the end of `text` may be the beginning of the marker."""
    longest = min(len(text), len(marker) - 1)
    return next((size for size in range(longest, 0, -1) if marker.startswith(text[-size:])), 0)


def before(text: str, marker: str) -> tuple[str, str | None]:
    """Text before the marker, and behind it; None, and what has to wait left out, when it has not come."""
    found = text.find(marker)
    if found >= 0:
        return text[:found], text[found + len(marker) :]
    return text[: len(text) - begun(text, marker)], None


class Trimmed:
    """Text whose white space at the end waits until more text comes, and at the beginning is left out."""

    __slots__ = ("_is_begun", "_waiting")

    def __init__(self, *, is_begun: bool = False) -> None:
        """White space at the beginning stays when it `is_begun`."""
        self._is_begun = is_begun
        self._waiting = ""

    def feed(self, text: str) -> str:
        """What can be shown now."""
        text = self._waiting + text
        if not self._is_begun:
            text = text.lstrip()
        shown = text.rstrip()
        self._waiting = text[len(shown) :]
        self._is_begun = self._is_begun or bool(shown)
        return shown

    def rest(self) -> str:
        """The white space that was waiting."""
        waiting, self._waiting = self._waiting, ""
        return waiting
