"""The JSON of one message: its blocks in one piece, or as events of Anthropic's API.

Sans-IO. Knows nothing about sending.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import orjson

from enginewire import v1 as pb
from enginewire.backend.frontends.http_api.openai.answer import Head
from enginewire.backend.frontends.http_api.openai.choice import Choice
from enginewire.backend.frontends.http_api.openai.generation_request import GenerationRequest
from enginewire.backend.frontends.http_api.openai.prompts.streams import PromptStreams
from enginewire.backend.frontends.http_api.openai.typed_answer import TypedAnswer
from enginewire.backend.frontends.http_api.refusal import MESSAGES, Refusal, error_fields
from enginewire.backend.parsing.delta import CallDelta
from enginewire.backend.parsing.pieces import Text, Thinking

Fields = Mapping[str, object]

STOP_REASONS: Final = {
    "content_filter": "refusal",
    "length": "max_tokens",
    "stop": "end_turn",
    "tool_calls": "tool_use",
}


@dataclass(slots=True)
class Block:
    """A block that grows: thinking, text, or the input of a call, which is `call`."""

    kind: str
    call: CallDelta | None = None
    text: str = ""

    def fields(self, *, is_begun: bool = False) -> Fields:
        """As it is now; empty at its beginning."""
        text = "" if is_begun else self.text
        if self.call is not None:
            read = {} if is_begun else read_input(text)
            return {"type": self.kind, "id": self.call.id, "name": self.call.name, "input": read}
        fields: Fields = {"type": self.kind, self.kind: text}
        # A signature is for servers that keep their thinking to themselves.
        return {**fields, "signature": ""} if self.kind == "thinking" else fields

    def delta(self, text: str) -> Fields:
        """It grows."""
        self.text += text
        if self.call is not None:
            return {"type": "input_json_delta", "partial_json": text}
        return {"type": f"{self.kind}_delta", self.kind: text}


class MessageAnswer(TypedAnswer[Fields]):
    """Outputs in, JSON out: `events` for a stream, `add` and `whole` for an answer in one piece."""

    def __init__(self, asked: GenerationRequest, head: Head, streams: PromptStreams) -> None:
        prompt = streams.prompt_texts.get(0, "")
        super().__init__(Choice(0, None, None if asked.format is None else asked.format.reader(prompt)))
        self._streams = streams
        self._blocks: list[Block] = []
        self._head: Fields = {"id": head.id, "type": "message", "role": "assistant", "model": head.model}

    def last_events(self) -> bytes:
        """What comes after the last output."""
        end: Fields = {"type": "message_delta", "delta": self._end(), "usage": usage_fields(self._usage)}
        return self._written([*self._closed(), end, {"type": "message_stop"}])

    def whole(self) -> bytes:
        """Everything that was added."""
        content = [block.fields() for block in self._blocks]
        return orjson.dumps({**self._message(content, usage_fields(self._usage)), **self._end()})

    def failed(self, refusal: Refusal) -> bytes:
        """The end of a stream that cannot go on."""
        return self._written([error_fields(refusal, MESSAGES)])

    def _first(self) -> Sequence[Fields]:
        usage: Fields = {"input_tokens": len(self._streams.prompt_ids.get(0, ())), "output_tokens": 0}
        return [{"type": "message_start", "message": self._message([], usage)}]

    def _news(self) -> Iterator[Fields]:
        delta, _ = self._choice.take_delta()
        for piece in delta.in_order():
            match piece:
                case Thinking(text):
                    yield from self._grow("thinking", text)
                case Text(text):
                    yield from self._grow("text", text)
                case CallDelta() as call:
                    yield from self._grow("tool_use", call.arguments, call if call.id else None)

    def _grow(self, kind: str, text: str, call: CallDelta | None = None) -> Iterator[Fields]:
        if call is not None or not self._blocks or self._blocks[-1].kind != kind:
            yield from self._closed()
            self._blocks.append(Block(kind, call))
            fields = self._blocks[-1].fields(is_begun=True)
            yield {"type": "content_block_start", "index": len(self._blocks) - 1, "content_block": fields}
        if text:
            delta = self._blocks[-1].delta(text)
            yield {"type": "content_block_delta", "index": len(self._blocks) - 1, "delta": delta}

    def _closed(self) -> Iterator[Fields]:
        if self._blocks:
            yield {"type": "content_block_stop", "index": len(self._blocks) - 1}

    def _written(self, events: Iterable[Fields]) -> bytes:
        return b"".join(
            b"event: %b\ndata: %b\n\n" % (str(each["type"]).encode(), orjson.dumps(each)) for each in events
        )

    def _message(self, content: Sequence[Fields], usage: Fields) -> Fields:
        return {**self._head, "content": content, "stop_reason": None, "stop_sequence": None, "usage": usage}

    def _end(self) -> Fields:
        reason, matched = self._choice.finish_reason or "stop", self._choice.stop_reason
        if reason == "stop" and isinstance(matched, str):
            return {"stop_reason": "stop_sequence", "stop_sequence": matched}
        return {"stop_reason": STOP_REASONS[reason], "stop_sequence": None}


def read_input(text: str) -> object:
    """The arguments of a call; without any where a model wrote no object."""
    try:
        read = orjson.loads(text)
    except orjson.JSONDecodeError:
        return {}
    return read if isinstance(read, dict) else {}


def usage_fields(usage: pb.CompletionUsage) -> Fields:
    """Counts in the words of this API, where what came from a cache is no input."""
    cached = usage.prompt_tokens_details.cached_tokens
    return {
        "input_tokens": usage.prompt_tokens - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": usage.completion_tokens,
    }
