"""A request while the engine computes it: whom its outputs go to, and which places it takes.

Knows nothing about gRPC or about other requests.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from engine_server.delivery import Sink
from engine_server.failures import EngineError
from engine_server.interface import GenerateContext
from enginewire import v1 as pb

log = logging.getLogger(__name__)

# What the contract allows an engine to tell a request beside its outputs.
MAX_EVENTS: Final = 1024
MAX_EVENT_BYTES: Final = 65_536


@dataclass(slots=True)
class Live:
    """A request in the engine. `open_choices` had no terminal output yet; `adapter` is "" for the model.

    `hidden_choices` are candidates beyond them that take places as well, until the request has ended.
    `asked_events` are the names of events that answer its annotations.
    """

    context: GenerateContext
    sink: Sink
    open_choices: int
    adapter: str
    hidden_choices: int = 0
    asked_events: frozenset[str] = frozenset()
    num_events: int = 0

    def engine_event(self, event: pb.EngineEvent) -> None:
        """Pass on what the request asks for, until it has ended."""
        if event.event not in self.asked_events or not self.open_choices:
            return
        self.num_events += 1
        size = event.ByteSize()
        if self.num_events <= MAX_EVENTS and size <= MAX_EVENT_BYTES:
            self.sink.engine_event(event)
        elif self.num_events <= MAX_EVENTS + 1:
            which = f"event {self.num_events} of {size} bytes"
            allowed = f"at most {MAX_EVENTS} of {MAX_EVENT_BYTES} bytes"
            log.warning("request %s: %s is left out, %s", self.context.request_id, which, allowed)


class Discard:
    """The sink of a request whose reader was given up."""

    def token(self, index: int, position: int, token_id: int) -> None:
        """Drop it."""

    def output(self, output: pb.LLMEngineOutput) -> None:
        """Drop it."""

    def engine_event(self, event: pb.EngineEvent) -> None:
        """Drop it."""

    def fail(self, failure: EngineError) -> None:
        """Drop it."""

    def finish(self) -> None:
        """Nobody is waiting."""

    def is_slow(self, now: float) -> bool:
        """Never again."""
        return False


def hidden_choices(options: pb.SamplingOptions) -> int:
    """Candidates that are computed and not returned."""
    return max(options.best_of - max(options.n, 1), 0)


def event_names(annotations: Iterable[str]) -> frozenset[str]:
    """The names of the events that annotations ask for: "key" and "key:value" ask for "key"."""
    return frozenset(annotation.partition(":")[0] for annotation in annotations) - {""}
