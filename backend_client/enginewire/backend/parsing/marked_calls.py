"""Calls between text, each behind a marker: where one begins, and the text around them.

Knows nothing about how a call is written: that is its body's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from enginewire.backend.parsing.call_object import NotACall
from enginewire.backend.parsing.markers import Trimmed, before
from enginewire.backend.parsing.pieces import CallBegin, Piece, Text


class CallBody(Protocol):
    """What comes behind a marker."""

    def feed(self, text: str) -> tuple[list[Piece], str | None]:
        """Pieces, and what is behind the body; None while it goes on. Raises NotACall."""
        ...

    def finish(self) -> list[Piece]:
        """The text has ended inside of the body. Raises NotACall."""
        ...


class MarkedCalls:
    """Text and calls. White space in front of a marker is no part of the text. See PieceParser."""

    def __init__(self, opening: str, body: Callable[[], CallBody]) -> None:
        self._opening = opening
        self._new_body = body
        self._body: CallBody | None = None
        self._waiting = ""
        # White space at the beginning is the model's own, until a call shows that it was for nothing.
        self._text = Trimmed(is_begun=True)

    def feed(self, text: str) -> list[Piece]:
        """See PieceParser."""
        self._waiting += text
        pieces: list[Piece] = []
        while self._waiting:
            more = self._outside() if self._body is None else self._inside(self._body)
            if more is None:
                break
            pieces += more
        return pieces

    def finish(self) -> list[Piece]:
        """See PieceParser."""
        pieces: list[Piece] = []
        rest = self._waiting
        if self._body is not None:
            try:
                pieces, rest = self._body.finish(), ""
            except NotACall as error:
                rest = self._opening + error.raw
        rest = self._text.rest() + rest
        return [*pieces, Text(rest)] if rest else pieces

    def _outside(self) -> list[Piece] | None:
        """The text up to the next marker; None when nothing can be said yet."""
        text, rest = before(self._waiting, self._opening)
        shown = self._text.feed(text)
        self._waiting = self._waiting[len(text) :] if rest is None else rest
        if rest is not None:
            self._body = self._new_body()
        elif not text:
            return None
        return [Text(shown)] if shown else []

    def _inside(self, body: CallBody) -> list[Piece]:
        try:
            pieces, rest = body.feed(self._waiting)
        except NotACall as error:
            self._body, self._waiting = None, error.raw
            space, self._text = self._text.rest(), Trimmed(is_begun=True)
            return [Text(space + self._opening)]
        if any(isinstance(piece, CallBegin) for piece in pieces):
            self._text = Trimmed()
        self._waiting = rest or ""
        if rest is not None:
            self._body = None
        return pieces
