"""The pieces of one answer as callers get them: thinking, text, and calls with a place and an id.

Knows nothing about JSON.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import attrgetter

from enginewire.backend.parsing.pieces import CallArguments, CallBegin, Piece, PieceParser, Text, Thinking


@dataclass(frozen=True, slots=True)
class CallDelta:
    """What is new in one call. `id` and `name` are "" unless it is the first of it."""

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""


News = Thinking | Text | CallDelta


@dataclass(slots=True)
class Delta:
    """What is new in an answer, piece by piece as it was said."""

    pieces: list[News] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.pieces)

    @property
    def thinking(self) -> str:
        """All of it."""
        return "".join(piece.text for piece in self.pieces if isinstance(piece, Thinking))

    @property
    def text(self) -> str:
        """All of it, what stands between calls too."""
        return "".join(piece.text for piece in self.pieces if isinstance(piece, Text))

    @property
    def calls(self) -> Sequence[CallDelta]:
        """What is new in each call."""
        calls = [piece for piece in self.pieces if isinstance(piece, CallDelta)]
        return [joined_calls(group) for _, group in groupby(calls, attrgetter("index"))]

    def in_order(self) -> Iterator[News]:
        """What is new, what belongs together in one piece."""
        for kind, group in groupby(self.pieces, _kind):
            if kind is Thinking:
                yield Thinking("".join(piece.text for piece in group if isinstance(piece, Thinking)))
            elif kind is Text:
                yield Text("".join(piece.text for piece in group if isinstance(piece, Text)))
            else:
                yield joined_calls(piece for piece in group if isinstance(piece, CallDelta))


def _kind(piece: News) -> object:
    return piece.index if isinstance(piece, CallDelta) else type(piece)


def joined_calls(pieces: Iterable[CallDelta]) -> CallDelta:
    """Pieces of the same call."""
    first, *more = pieces
    return replace(first, arguments="".join(piece.arguments for piece in (first, *more)))


class AnswerReader:
    """The text of one choice in, what it means out."""

    def __init__(
        self,
        thinking: PieceParser | None,
        calls: PieceParser | None,
        *,
        new_id: Callable[[], str],
        shows_thinking: bool = True,
        max_calls: int | None = None,
    ) -> None:
        """Calls beyond `max_calls` are left out, and thinking unless it is shown."""
        self._thinking = thinking
        self._calls = calls
        self._new_id = new_id
        self._shows_thinking = shows_thinking
        self._max_calls = max_calls
        self._num_calls = 0
        self._delta = Delta()

    @property
    def has_calls(self) -> bool:
        """At least one call has begun."""
        return self._num_calls > 0

    @property
    def has_news(self) -> bool:
        """There is something to take."""
        return bool(self._delta)

    def feed(self, text: str) -> None:
        """Take text of the answer."""
        self._add([Text(text)] if self._thinking is None else self._thinking.feed(text))

    def finish(self) -> None:
        """The answer has ended."""
        if self._thinking is not None:
            self._add(self._thinking.finish())
        if self._calls is not None:
            self._put(self._calls.finish())

    def take(self) -> Delta:
        """Everything since the last time."""
        delta, self._delta = self._delta, Delta()
        return delta

    def _add(self, pieces: Iterable[Piece]) -> None:
        for piece in pieces:
            if isinstance(piece, Text) and self._calls is not None:
                self._put(self._calls.feed(piece.text))
            else:
                self._put([piece])

    def _put(self, pieces: Iterable[Piece]) -> None:
        for piece in pieces:
            match piece:
                case Thinking(text):
                    self._tell(piece if text and self._shows_thinking else None)
                case Text(text):
                    self._tell(piece if text else None)
                case CallBegin(name):
                    self._num_calls += 1
                    self._tell(CallDelta(self._num_calls - 1, self._new_id(), name))
                case CallArguments(text):
                    self._tell(CallDelta(self._num_calls - 1, arguments=text) if text else None)

    def _tell(self, piece: News | None) -> None:
        is_left_out = (
            isinstance(piece, CallDelta) and self._max_calls is not None and piece.index >= self._max_calls
        )
        if piece is not None and not is_left_out:
            self._delta.pieces.append(piece)


def call_id() -> str:
    """As OpenAI writes them."""
    return f"call_{secrets.token_hex(12)}"


def short_call_id() -> str:
    """Nine letters and digits, which templates of Mistral ask for."""
    return secrets.token_hex(5)[:9]
