"""One item of a response, a message, the thinking before it or a call: its events and its fields. Sans-IO."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

Fields = Mapping[str, object]
Event = tuple[str, Fields]


class Item(Protocol):
    """What all items have."""

    def begin(self) -> Iterator[Event]:
        """It is there, and empty."""
        ...

    def end(self, status: str) -> Iterator[Event]:
        """It is complete, or ends."""
        ...

    def fields(self, status: str) -> Fields:
        """As it is now."""
        ...


class Kind(NamedTuple):
    """What an item of text and its only part are called, and what it has of its own."""

    item: str
    part: str
    prefix: str
    fields: Fields
    part_fields: Fields


MESSAGE: Final = Kind("message", "output_text", "msg", {"role": "assistant"}, {"annotations": []})
THINKING: Final = Kind("reasoning", "reasoning_text", "rs", {"summary": []}, {})


@dataclass(slots=True)
class TextItem:
    """Text that grows. `place` is its number; `logprobs` is None where nobody wants them. See Item."""

    kind: Kind
    place: int
    answer_id: str
    logprobs: list[object] | None = None
    text: str = ""
    _where: dict[str, object] = field(init=False)

    def __post_init__(self) -> None:
        self._where = {"item_id": self.id, "output_index": self.place, "content_index": 0}

    @property
    def id(self) -> str:
        """See item_id."""
        return item_id(self.kind.prefix, self.answer_id, self.place)

    def begin(self) -> Iterator[Event]:
        """See Item."""
        item = self._fields("in_progress", [])
        yield "response.output_item.added", {"output_index": self.place, "item": item}
        yield "response.content_part.added", {**self._where, "part": self._part("", [])}

    def add(self, text: str, logprobs: Sequence[object]) -> Iterator[Event]:
        """It grows."""
        self.text += text
        delta: dict[str, object] = {**self._where, "delta": text}
        if self.kind is MESSAGE:
            delta["logprobs"] = logprobs
        if self.logprobs is not None:
            self.logprobs += logprobs
        yield f"response.{self.kind.part}.delta", delta

    def end(self, status: str) -> Iterator[Event]:
        """See Item."""
        done: dict[str, object] = {**self._where, "text": self.text}
        if self.kind is MESSAGE:
            done["logprobs"] = self.logprobs or []
        part = self._part(self.text, self.logprobs or [])
        yield f"response.{self.kind.part}.done", done
        yield "response.content_part.done", {**self._where, "part": part}
        yield "response.output_item.done", {"output_index": self.place, "item": self.fields(status)}

    def fields(self, status: str) -> Fields:
        """See Item."""
        return self._fields(status, [self._part(self.text, self.logprobs or [])])

    def _fields(self, status: str, content: Sequence[Fields]) -> Fields:
        fields = {"id": self.id, "type": self.kind.item, **self.kind.fields}
        return {**fields, "status": status, "content": content}

    def _part(self, text: str, logprobs: Sequence[object]) -> Fields:
        part = {"type": self.kind.part, "text": text, **self.kind.part_fields}
        return part if self.logprobs is None else {**part, "logprobs": logprobs}


@dataclass(slots=True)
class CallItem:
    """A call whose arguments grow. `index` is its place among the calls. See Item."""

    index: int
    name: str
    call_id: str
    place: int
    answer_id: str
    arguments: str = ""
    _where: dict[str, object] = field(init=False)

    def __post_init__(self) -> None:
        self._where = {"item_id": self.id, "output_index": self.place}

    @property
    def id(self) -> str:
        """See item_id."""
        return item_id("fc", self.answer_id, self.place)

    def begin(self) -> Iterator[Event]:
        """See Item."""
        item = self.fields("in_progress")
        yield "response.output_item.added", {"output_index": self.place, "item": item}

    def add(self, arguments: str) -> Iterator[Event]:
        """It grows."""
        self.arguments += arguments
        yield "response.function_call_arguments.delta", {**self._where, "delta": arguments}

    def end(self, status: str) -> Iterator[Event]:
        """See Item."""
        done = {**self._where, "name": self.name, "arguments": self.arguments}
        yield "response.function_call_arguments.done", done
        yield "response.output_item.done", {"output_index": self.place, "item": self.fields(status)}

    def fields(self, status: str) -> Fields:
        """See Item."""
        return {
            "id": self.id,
            "type": "function_call",
            "call_id": self.call_id,
            "name": self.name,
            "arguments": self.arguments,
            "status": status,
        }


def item_id(prefix: str, answer_id: str, place: int) -> str:
    """The id of an item, made of that of the response."""
    return f"{prefix}{answer_id.removeprefix('resp')}-{place}"
