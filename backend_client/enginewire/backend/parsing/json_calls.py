"""Calls as objects of JSON, one or a list of them, and nothing in front of them.

The format of Llama 3, of many models that were never taught one, and of every answer that follows a
grammar for calls. Knows nothing about what is behind a marker.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from enginewire.backend.parsing.call_object import CallObject, NotACall
from enginewire.backend.parsing.markers import Trimmed
from enginewire.backend.parsing.pieces import CallArguments, CallBegin, Piece, Text

# Between calls; models of the Llama family write semicolons.
SEPARATORS: Final = " \t\r\n,;"


class JsonCalls:
    """An answer that is calls from its first character on, or else text. See PieceParser."""

    def __init__(self, is_call: Callable[[str], bool], *, opening: str = "") -> None:
        """`is_call` says which names there are; `opening` is a marker that may come first."""
        self._is_call = is_call
        self._opening = opening
        self._waiting = ""
        # What came before the first call: it is text as well when that turns out to be none.
        self._lead = ""
        self._object: CallObject | None = None
        self._ends = SEPARATORS
        self._has_calls = False
        self._is_text = False

    def feed(self, text: str) -> list[Piece]:
        """See PieceParser."""
        self._waiting += text
        pieces: list[Piece] = []
        while self._waiting and not self._is_text:
            if self._object is not None:
                pieces += self._read(self._object)
            elif not (self._go_on() if self._has_calls else self._begin()):
                return pieces
        if self._waiting:
            pieces.append(Text(self._waiting))
            self._waiting = ""
        return pieces

    def finish(self) -> list[Piece]:
        """See PieceParser."""
        raw, self._waiting = self._waiting, ""
        if self._object is not None:
            try:
                return self._object.finish()
            except NotACall as error:
                raw = self._lead + error.raw
        return [Text(raw)] if raw else []

    def _begin(self) -> bool:
        """Find the first object, or that there is none; False when more text is needed."""
        rest = self._waiting.lstrip()
        if self._opening.startswith(rest):
            return False
        rest = rest.removeprefix(self._opening).lstrip()
        if rest.startswith("["):
            self._ends = f"{SEPARATORS}]"
            rest = rest[1:].lstrip()
        if not rest:
            return False
        self._lead = self._waiting[: len(self._waiting) - len(rest)]
        self._open(rest)
        return True

    def _go_on(self) -> bool:
        """Find the next object, or that text follows; False when more text is needed."""
        self._waiting = self._waiting.lstrip(self._ends)
        if self._waiting:
            self._open(self._waiting)
        return bool(self._waiting)

    def _open(self, rest: str) -> None:
        if rest[0] == "{":
            self._object, self._waiting = CallObject(self._is_call), rest
        else:
            self._is_text = True

    def _read(self, call: CallObject) -> list[Piece]:
        try:
            pieces, rest = call.feed(self._waiting)
        except NotACall as error:
            self._object, self._is_text = None, True
            self._waiting = self._lead + error.raw
            return []
        if pieces:
            self._lead = ""
        self._waiting = rest or ""
        if rest is not None:
            self._object, self._has_calls = None, True
        return pieces


class OneCall:
    """An answer that is the arguments of one call, because its grammar says so. See PieceParser."""

    def __init__(self, name: str) -> None:
        self._name: str | None = name
        self._text = Trimmed()

    def feed(self, text: str) -> list[Piece]:
        """See PieceParser."""
        shown = self._text.feed(text)
        if not shown:
            return []
        begin: list[Piece] = [] if self._name is None else [CallBegin(self._name)]
        self._name = None
        return [*begin, CallArguments(shown)]

    def finish(self) -> list[Piece]:
        """See PieceParser."""
        return []
