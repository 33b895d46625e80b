"""The pieces of one answer as callers get them: thinking, text, and calls with a place and an id.

Knows nothing about JSON.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from enginewire.backend.parsing.pieces import CallArguments, CallBegin, Piece, PieceParser, Text, Thinking


@dataclass(slots=True)
class CallDelta:
    """What is new in one call. `id` and `name` are "" unless it is the first of it."""

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass(slots=True)
class Delta:
    """What is new in an answer; `calls` by their place in it."""

    thinking: str = ""
    text: str = ""
    calls: dict[int, CallDelta] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.thinking or self.text or self.calls)

    def in_order(self, open_call: int | None) -> Iterator[Thinking | Text | CallDelta]:
        """What is new, as it was said: `open_call` is the place of the call that goes on, if one does."""
        if open_call in self.calls:
            yield self.calls[open_call]
        if self.thinking:
            yield Thinking(self.thinking)
        if self.text:
            yield Text(self.text)
        yield from (call for index, call in self.calls.items() if index != open_call)


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
                    self._delta.thinking += text if self._shows_thinking else ""
                case Text(text):
                    self._delta.text += text
                case CallBegin(name):
                    self._num_calls += 1
                    self._change_call(CallDelta(self._num_calls - 1, self._new_id(), name))
                case CallArguments(text):
                    self._change_call(CallDelta(self._num_calls - 1, arguments=text))

    def _change_call(self, change: CallDelta) -> None:
        if self._max_calls is not None and change.index >= self._max_calls:
            return
        call = self._delta.calls.setdefault(change.index, change)
        if call is not change:
            call.arguments += change.arguments


def call_id() -> str:
    """As OpenAI writes them."""
    return f"call_{secrets.token_hex(12)}"


def short_call_id() -> str:
    """Nine letters and digits, which templates of Mistral ask for."""
    return secrets.token_hex(5)[:9]
