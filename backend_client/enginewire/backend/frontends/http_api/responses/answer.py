"""The JSON of one response: its items in one piece, or as typed events.

Sans-IO. Knows nothing about sending.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, cast

import orjson

from enginewire import v1 as pb
from enginewire.backend.decoding.vocabulary import Vocabulary
from enginewire.backend.frontends.http_api.openai.answer import Head
from enginewire.backend.frontends.http_api.openai.choice import Choice
from enginewire.backend.frontends.http_api.openai.logprobs import ChatRows
from enginewire.backend.frontends.http_api.openai.typed_answer import TypedAnswer
from enginewire.backend.frontends.http_api.refusal import Refusal
from enginewire.backend.frontends.http_api.responses.fields import ResponseRequest
from enginewire.backend.frontends.http_api.responses.items import (
    MESSAGE,
    THINKING,
    CallItem,
    Event,
    Fields,
    Item,
    Kind,
    TextItem,
)
from enginewire.backend.parsing.delta import CallDelta
from enginewire.backend.parsing.pieces import Text, Thinking

# Why a choice ended, when that was not its natural end.
INCOMPLETE: Final = {"length": "max_output_tokens", "content_filter": "content_filter"}


class ResponseAnswer(TypedAnswer[Event]):
    """Outputs in, JSON out: `events` for a stream, `add` and `whole` for an answer in one piece."""

    def __init__(self, asked: ResponseRequest, head: Head, vocabulary: Vocabulary, prompt: str) -> None:
        """`prompt` is the text whose end may have opened the thinking, "" where nobody asked for it."""
        rows = ChatRows(vocabulary, asked.row_form) if asked.with_logprobs else None
        super().__init__(Choice(0, rows, None if asked.format is None else asked.format.reader(prompt)))
        self._has_logprobs = asked.with_logprobs
        self._items: list[Item] = []
        # Those of tokens that are no text, which the next text brings along.
        self._logprobs: list[object] = []
        self._num_events = 0
        self._id = head.id
        self._head = {
            "id": head.id,
            "object": "response",
            "created_at": head.created,
            "model": head.model,
            **asked.told,
        }

    def last_events(self) -> bytes:
        """What comes after the last output."""
        events = [*self._rest(), *self._items[-1].end(self._status)]
        return self._written([*events, (f"response.{self._status}", {"response": self._whole()})])

    def whole(self) -> bytes:
        """Everything that was added."""
        _ = [*self._rest()]
        return orjson.dumps(self._whole())

    def failed(self, refusal: Refusal) -> bytes:
        """The end of a stream that cannot go on."""
        error = {"code": refusal.code or refusal.type, "message": refusal.error["message"]}
        return self._written([("response.failed", {"response": self._response("failed", error=error)})])

    def _first(self) -> Sequence[Event]:
        response = {"response": self._response("in_progress")}
        return [("response.created", response), ("response.in_progress", response)]

    def _news(self) -> Iterator[Event]:
        delta, columns = self._choice.take_delta()
        if columns is not None:
            self._logprobs += cast(list[object], columns["content"])
        for piece in delta.in_order():
            match piece:
                case Thinking(text):
                    yield from self._grow(THINKING, text, [])
                case Text(text):
                    yield from self._grow(MESSAGE, text, self._taken_logprobs())
                case CallDelta() as call:
                    yield from self._call(call)
        if self._logprobs and is_of(MESSAGE, self._last):
            yield from self._grow(MESSAGE, "", self._taken_logprobs())

    def _rest(self) -> Iterator[Event]:
        """There is a message or a call, if only an empty message."""
        if not (is_of(MESSAGE, self._last) or isinstance(self._last, CallItem)):
            yield from self._grow(MESSAGE, "", self._taken_logprobs())

    def _taken_logprobs(self) -> list[object]:
        taken, self._logprobs = self._logprobs, []
        return taken

    def _grow(self, kind: Kind, text: str, logprobs: Sequence[object]) -> Iterator[Event]:
        item = self._last
        if not isinstance(item, TextItem) or item.kind is not kind:
            wants_logprobs = kind is MESSAGE and self._has_logprobs
            item = TextItem(kind, len(self._items), self._id, [] if wants_logprobs else None)
            yield from self._begin(item)
        if text or logprobs:
            yield from item.add(text, logprobs)

    def _call(self, call: CallDelta) -> Iterator[Event]:
        # The tokens of calls have no place for log-probabilities.
        self._logprobs.clear()
        item = self._last
        if call.id or not isinstance(item, CallItem):
            item = CallItem(call.index, call.name, call.id, len(self._items), self._id)
            yield from self._begin(item)
        if call.arguments:
            yield from item.add(call.arguments)

    def _begin(self, item: Item) -> Iterator[Event]:
        if self._last is not None:
            yield from self._last.end("completed")
        self._items.append(item)
        yield from item.begin()

    @property
    def _last(self) -> Item | None:
        return self._items[-1] if self._items else None

    @property
    def _status(self) -> str:
        return "incomplete" if self._choice.finish_reason in INCOMPLETE else "completed"

    def _whole(self) -> Fields:
        status, why = self._status, INCOMPLETE.get(self._choice.finish_reason or "")
        *before, last = self._items
        return self._response(
            status,
            completed_at=int(time.time()) if status == "completed" else None,
            incomplete_details={"reason": why} if why else None,
            output=[*(item.fields("completed") for item in before), last.fields(status)],
            usage=usage_fields(self._usage),
        )

    def _response(self, status: str, **more: object) -> Fields:
        empty: Fields = {"error": None, "incomplete_details": None, "output": [], "usage": None}
        return {**self._head, **empty, "status": status, **more}

    def _written(self, events: Iterable[Event]) -> bytes:
        written = []
        for kind, fields in events:
            data = {"type": kind, "sequence_number": self._num_events, **fields}
            self._num_events += 1
            written.append(b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps(data)))
        return b"".join(written)


def is_of(kind: Kind, item: Item | None) -> bool:
    """Whether it is text of that kind."""
    return isinstance(item, TextItem) and item.kind is kind


def usage_fields(usage: pb.CompletionUsage) -> Fields:
    """Counts in the words of this API; what an engine did not tell is 0."""
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.prompt_tokens_details.cached_tokens},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {
            "reasoning_tokens": usage.completion_tokens_details.reasoning_tokens,
        },
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
