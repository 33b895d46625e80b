"""What the scripted engine keeps: the prompts that it has scripts for, and every call of the backend.

State only; `engine` and `multiplexed_engine` play.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

import grpc
from google.protobuf.message import Message

from enginewire import v1 as pb
from enginewire.conformance.client_side.stage.script import Fail, Step
from enginewire.conformance.wire.exchange import Arrived, Exchange

LIFE: Final = "life-%d"
"""Each attempt of a request meets another life of the engine."""

TWINS: Final[Mapping[str, str]] = {
    "enginewire-dp-rank": "dp_rank",
    "enginewire-priority": "priority",
    "enginewire-routing-key": "routing_key",
}
"""The keys of metadata that repeat a field of `routing`."""

M = TypeVar("M", bound=Message)


@dataclass(slots=True, eq=False)
class Turn:
    """One Generate of the backend, as the engine saw it."""

    request: pb.GenerateRequest
    exchange: Exchange
    seconds_left: float | None
    metadata: Mapping[str, str] = field(default_factory=dict)
    lifetime_id: str = LIFE % 1
    left: asyncio.Event = field(default_factory=asyncio.Event)
    """The backend cancelled the call or aborted the request."""
    said: int = 0

    @property
    def part(self) -> pb.PreprocessedRequest:
        """What it asks for."""
        return self.request.request

    def arrive(self, message: M) -> M:
        """Keep a message that is sent now."""
        self.exchange.arrived.append(Arrived(time.monotonic(), message, message.ByteSize()))
        return message

    def leave(self) -> None:
        """The backend wants nothing more of it."""
        self.exchange.code = grpc.StatusCode.CANCELLED
        self.left.set()


class Scripted(Exception):
    """A script ends with a status."""

    def __init__(self, step: Fail) -> None:
        super().__init__(step.message)
        self.step = step


@dataclass(slots=True, eq=False)
class Scene:
    """A prompt and what the engine answers to it: a script per attempt, the last one for all further ones."""

    prompt: list[int]
    scripts: Sequence[Sequence[Step]]
    turns: list[Turn] = field(default_factory=list)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)

    def begin(self, turn: Turn) -> Sequence[Step]:
        """The script of the next attempt."""
        self.turns.append(turn)
        turn.lifetime_id = LIFE % len(self.turns)
        self.arrived.set()
        return self.scripts[min(len(self.turns), len(self.scripts)) - 1]
