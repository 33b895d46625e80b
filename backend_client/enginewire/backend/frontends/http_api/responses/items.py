"""One item of a response, a message or the thinking before it: its events and its fields. Sans-IO."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

Fields = Mapping[str, object]
Event = tuple[str, Fields]


class Kind(NamedTuple):
    """What an item and its only part are called, and what it has of its own."""

    item: str
    part: str
    prefix: str
    fields: Fields
    part_fields: Fields


MESSAGE: Final = Kind("message", "output_text", "msg", {"role": "assistant"}, {"annotations": []})
THINKING: Final = Kind("reasoning", "reasoning_text", "rs", {"summary": []}, {})


@dataclass(slots=True)
class Item:
    """An item that grows. `place` is its number; `logprobs` is None where nobody wants them."""

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
        """Its id, which is made of that of the response."""
        return f"{self.kind.prefix}{self.answer_id.removeprefix('resp')}"

    def begin(self) -> Iterator[Event]:
        """It is there, and empty."""
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
        """It is complete, or ends."""
        done: dict[str, object] = {**self._where, "text": self.text}
        if self.kind is MESSAGE:
            done["logprobs"] = self.logprobs or []
        part = self._part(self.text, self.logprobs or [])
        yield f"response.{self.kind.part}.done", done
        yield "response.content_part.done", {**self._where, "part": part}
        yield "response.output_item.done", {"output_index": self.place, "item": self.fields(status)}

    def fields(self, status: str) -> Fields:
        """As it is now."""
        return self._fields(status, [self._part(self.text, self.logprobs or [])])

    def _fields(self, status: str, content: Sequence[Fields]) -> Fields:
        fields = {"id": self.id, "type": self.kind.item, **self.kind.fields}
        return {**fields, "status": status, "content": content}

    def _part(self, text: str, logprobs: Sequence[object]) -> Fields:
        part = {"type": self.kind.part, "text": text, **self.kind.part_fields}
        return part if self.logprobs is None else {**part, "logprobs": logprobs}
