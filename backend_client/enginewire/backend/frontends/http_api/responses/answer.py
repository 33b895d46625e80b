"""The JSON of one response: a message as its only item, in one piece or as typed events.

Sans-IO. Knows nothing about sending.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, cast

import orjson

from enginewire import v1 as pb
from enginewire.backend.decoding.vocabulary import Vocabulary
from enginewire.backend.frontends.http_api.openai.answer import Head
from enginewire.backend.frontends.http_api.openai.choice import Choice
from enginewire.backend.frontends.http_api.openai.logprobs import ChatRows
from enginewire.backend.frontends.http_api.openai.prompt_streams import Placed
from enginewire.backend.frontends.http_api.refusal import Refusal
from enginewire.backend.frontends.http_api.responses.fields import ResponseRequest

Fields = Mapping[str, object]

# Why a choice ended, when that was not its natural end.
INCOMPLETE: Final = {"length": "max_output_tokens", "content_filter": "content_filter"}
PLACE: Final = {"output_index": 0, "content_index": 0}


class ResponseAnswer:
    """Outputs in, JSON out: `events` for a stream, `add` and `whole` for an answer in one piece."""

    def __init__(self, asked: ResponseRequest, head: Head, vocabulary: Vocabulary) -> None:
        self._id = head.id
        self._item_id = f"msg{head.id.removeprefix('resp')}"
        self._has_logprobs = asked.with_logprobs
        self._choice = Choice(0, ChatRows(vocabulary, asked.row_form) if asked.with_logprobs else None)
        self._usage = pb.CompletionUsage()
        self._texts: list[str] = []
        self._logprobs: list[object] = []
        self._num_events = 0
        self._head = {
            "id": head.id,
            "object": "response",
            "created_at": head.created,
            "model": head.model,
            **asked.told,
        }

    def add(self, batch: Sequence[Placed]) -> None:
        """Take outputs."""
        for _, output in batch:
            self._choice.add(output)
            if output.completion_usage is not None:
                self._usage = output.completion_usage

    def events(self, batch: Sequence[Placed]) -> bytes:
        """Take outputs; the events they make."""
        begin = b"" if self._num_events else b"".join(self._begin())
        self.add(batch)
        text, logprobs = self._take()
        if not text and not logprobs:
            return begin
        delta = {**PLACE, "item_id": self._item_id, "delta": text, "logprobs": logprobs}
        return begin + self._event("response.output_text.delta", delta)

    def last_events(self) -> bytes:
        """What comes after the last output."""
        status = self._status
        return b"".join([*self._end(status), self._event(f"response.{status}", {"response": self._whole()})])

    def whole(self) -> bytes:
        """Everything that was added."""
        return orjson.dumps(self._whole())

    def failed(self, refusal: Refusal) -> bytes:
        """The end of a stream that cannot go on."""
        error = {"code": refusal.code or refusal.type, "message": refusal.error["message"]}
        return self._event("response.failed", {"response": self._response("failed", error=error)})

    def _begin(self) -> Iterator[bytes]:
        for kind in ("created", "in_progress"):
            yield self._event(f"response.{kind}", {"response": self._response("in_progress")})
        item = {"output_index": 0, "item": self._item("in_progress", [])}
        yield self._event("response.output_item.added", item)
        part = {**PLACE, "item_id": self._item_id, "part": self._part("", [])}
        yield self._event("response.content_part.added", part)

    def _end(self, status: str) -> Iterator[bytes]:
        self._take()
        text, logprobs = "".join(self._texts), self._logprobs
        place = {**PLACE, "item_id": self._item_id}
        yield self._event("response.output_text.done", {**place, "text": text, "logprobs": logprobs})
        yield self._event("response.content_part.done", {**place, "part": self._part(text, logprobs)})
        item = self._item(status, [self._part(text, logprobs)])
        yield self._event("response.output_item.done", {"output_index": 0, "item": item})

    def _take(self) -> tuple[str, list[object]]:
        text, columns = self._choice.take()
        logprobs = cast(list[object], columns["content"]) if columns is not None else []
        self._texts.append(text)
        self._logprobs += logprobs
        return text, logprobs

    @property
    def _status(self) -> str:
        return "incomplete" if self._choice.finish_reason in INCOMPLETE else "completed"

    def _whole(self) -> Fields:
        self._take()
        status, why = self._status, INCOMPLETE.get(self._choice.finish_reason or "")
        return self._response(
            status,
            completed_at=int(time.time()) if status == "completed" else None,
            incomplete_details={"reason": why} if why else None,
            output=[self._item(status, [self._part("".join(self._texts), self._logprobs)])],
            usage=usage_fields(self._usage),
        )

    def _response(self, status: str, **more: object) -> Fields:
        empty: Fields = {"error": None, "incomplete_details": None, "output": [], "usage": None}
        return {**self._head, **empty, "status": status, **more}

    def _item(self, status: str, content: Sequence[Fields]) -> Fields:
        fields = {"id": self._item_id, "type": "message", "role": "assistant"}
        return {**fields, "status": status, "content": content}

    def _part(self, text: str, logprobs: Sequence[object]) -> Fields:
        part: dict[str, object] = {"type": "output_text", "text": text, "annotations": []}
        return {**part, "logprobs": logprobs} if self._has_logprobs else part

    def _event(self, kind: str, fields: Fields) -> bytes:
        data = {"type": kind, "sequence_number": self._num_events, **fields}
        self._num_events += 1
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps(data))


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
