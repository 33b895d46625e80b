"""An answer read whole, or cut into pieces of any length."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random

from enginewire.backend.parsing.delta import AnswerReader

SCHEMAS = {
    "f": {
        "properties": {
            "a": {"type": "integer"},
            "s": {"type": "string"},
            "n": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "o": {"type": "object"},
        }
    },
    "g": {},
}


@dataclass(slots=True)
class Read:
    """What the pieces come together to. `calls`: name and arguments."""

    thinking: str = ""
    text: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)


def read(reader: AnswerReader, pieces: Iterable[str]) -> Read:
    result = Read()
    for piece in pieces:
        reader.feed(piece)
        add(result, reader)
    reader.finish()
    add(result, reader)
    return result


def add(result: Read, reader: AnswerReader) -> None:
    delta = reader.take()
    result.thinking += delta.thinking
    result.text += delta.text
    for call in delta.calls:
        assert bool(call.id) == bool(call.name) == (call.index == len(result.calls))
        name, arguments = (call.name, "") if call.id else result.calls.pop()
        result.calls.append((name, arguments + call.arguments))


def cut(text: str, random: Random) -> list[str]:
    """Pieces of one to a dozen characters, many of them short."""
    pieces = []
    while text:
        size = random.choice((1, 1, 1, 2, 3, 5, 12))
        pieces.append(text[:size])
        text = text[size:]
    return pieces
