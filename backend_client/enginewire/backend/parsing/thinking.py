"""Thinking in front of an answer, between two markers.

The prompt may have opened it already. White space around the thinking is no part of it, nor of the answer.
"""

from __future__ import annotations

from dataclasses import dataclass

from enginewire.backend.parsing.markers import Trimmed, before
from enginewire.backend.parsing.pieces import Piece, Text, Thinking


@dataclass(frozen=True, slots=True)
class ThinkingMarkers:
    """What opens and closes thinking. `is_implied`: the model thinks although nothing has opened it."""

    opening: str
    closing: str
    is_implied: bool = False

    def is_open_after(self, prompt: str) -> bool:
        """True when an answer to this prompt begins inside of thinking."""
        end = prompt.rstrip()
        return end.endswith(self.opening) or (self.is_implied and not end.endswith(self.closing))


class ThinkingParser:
    """Thinking, then text. See PieceParser."""

    def __init__(self, markers: ThinkingMarkers, *, is_open: bool) -> None:
        """`is_open` when the answer begins inside of thinking; it may open it once more all the same."""
        self._markers = markers
        self._is_open = is_open
        self._is_begun = False
        self._is_just_closed = False
        self._waiting = ""
        self._thinking = Trimmed()

    def feed(self, text: str) -> list[Piece]:
        """See PieceParser."""
        self._waiting += text
        pieces: list[Piece] = []
        if not self._is_begun and not self._begin():
            return pieces
        if self._is_open:
            thought, rest = before(self._waiting, self._markers.closing)
            if shown := self._thinking.feed(thought):
                pieces.append(Thinking(shown))
            if rest is None:
                self._waiting = self._waiting[len(thought) :]
                return pieces
            self._is_open, self._is_just_closed, self._waiting = False, True, rest
        answer, self._waiting = self._waiting, ""
        if self._is_just_closed:
            answer = answer.lstrip()
            self._is_just_closed = not answer
        return [*pieces, Text(answer)] if answer else pieces

    def finish(self) -> list[Piece]:
        """See PieceParser."""
        rest, self._waiting = self._waiting, ""
        if not self._is_open:
            return [Text(rest)] if rest else []
        shown = self._thinking.feed(rest)
        return [Thinking(shown)] if shown else []

    def _begin(self) -> bool:
        """Look for the opening marker; False while it may still come."""
        rest = self._waiting.lstrip()
        if self._markers.opening.startswith(rest) and rest != self._markers.opening:
            return False
        self._is_begun = True
        if rest.startswith(self._markers.opening):
            self._is_open, self._waiting = True, rest.removeprefix(self._markers.opening)
        return True
