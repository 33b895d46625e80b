"""Hermes, Qwen 2.5 and 3: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from enginewire.backend.parsing.call_object import CallObject
from enginewire.backend.parsing.marked_calls import MarkedCalls
from enginewire.backend.parsing.pieces import Piece

OPENING: Final = "<tool_call>"
CLOSING: Final = "</tool_call>"


class HermesBody:
    """An object and the closing marker, which some models forget. See CallBody."""

    def __init__(self, is_call: Callable[[str], bool]) -> None:
        self._object: CallObject | None = CallObject(is_call)
        self._closing = ClosingMarker(CLOSING)

    def feed(self, text: str) -> tuple[list[Piece], str | None]:
        """See CallBody."""
        pieces: list[Piece] = []
        if self._object is not None:
            pieces, rest = self._object.feed(text)
            if rest is None:
                return pieces, None
            self._object, text = None, rest
        return pieces, self._closing.feed(text)

    def finish(self) -> list[Piece]:
        """See CallBody."""
        return [] if self._object is None else self._object.finish()


class ClosingMarker:
    """A marker that should come next, perhaps behind white space, and is left out when it does."""

    def __init__(self, marker: str) -> None:
        self._marker = marker
        self._waiting = ""

    def feed(self, text: str) -> str | None:
        """What is behind the marker, or instead of it; None while neither has come."""
        self._waiting += text
        rest = self._waiting.lstrip()
        if rest.startswith(self._marker):
            return rest.removeprefix(self._marker)
        return None if self._marker.startswith(rest) else self._waiting


def hermes_calls(is_call: Callable[[str], bool]) -> MarkedCalls:
    """A parser of this format."""
    return MarkedCalls(OPENING, lambda: HermesBody(is_call))
