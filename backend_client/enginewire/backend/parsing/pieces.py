"""What an answer is made of, in the order in which the model says it.

Knows nothing about how models write it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Thinking:
    """Text that comes before the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class Text:
    """Text of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegin:
    """The model calls a tool."""

    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """A piece of the arguments, which are JSON, of the call that began last."""

    text: str


Piece = Thinking | Text | CallBegin | CallArguments


class PieceParser(Protocol):
    """Text in, as it arrives; pieces out. What pieces come together to does not depend on where it is cut."""

    def feed(self, text: str) -> list[Piece]:
        """The pieces that are certain now."""
        ...

    def finish(self) -> list[Piece]:
        """The pieces that were still waiting for more text."""
        ...
