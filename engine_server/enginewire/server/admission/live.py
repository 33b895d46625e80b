"""A request while the engine computes it: whom its outputs go to, which places it takes.

Knows nothing about gRPC or about other requests.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from enginewire import v1 as pb
from enginewire.access.caller import NOBODY, Party, caller
from enginewire.access.meters import NOTHING, Ticket
from enginewire.server.admission.delivery import Sink
from enginewire.server.admission.request_check import RequestCheck
from enginewire.server.engines.interface import GenerateContext, StepOutputs
from enginewire.server.failures import EngineError

log = logging.getLogger(__name__)

Accepted = pb.PreprocessedRequest | pb.PreprocessedEmbeddingRequest
Failed: TypeAlias = "pb.ErrorReason.ValueType | None"
"""Why a request failed; None: it did not."""

# What the contract allows an engine to tell a request beside its outputs.
MAX_EVENTS: Final = 1024
MAX_EVENT_BYTES: Final = 65_536


@dataclass(slots=True, eq=False)
class Live:
    """A request in the engine. `open_choices` had no terminal output yet; `adapter` is "" for the model.

    `owner` is the identity of its caller, who may end it; `party` whose weight and limits count, and `ticket`
    what it has taken of them. `num_tokens` are counted for failures alone, where somebody's tokens are
    limited. `hidden_choices` are candidates beyond them that take places as well, until the request has
    ended. `asked_events` are the names of events that answer its annotations, `ended` the choices that have
    ended. `check` is there when all that the engine sends is checked.
    """

    context: GenerateContext
    sink: Sink
    open_choices: int
    adapter: str
    hidden_choices: int = 0
    asked_events: frozenset[str] = frozenset()
    num_events: int = 0
    check: RequestCheck | None = None
    ended: set[int] = field(default_factory=set)
    party: Party = NOBODY
    ticket: Ticket = NOTHING
    num_tokens: int = 0
    owner: str = field(default_factory=lambda: caller().identity)
    accepted_at: float = field(default_factory=time.monotonic)

    @property
    def times(self) -> str:
        """How long it waited and was computed, as far as its engine says when it began."""
        began, now = self.context.running_since, time.monotonic()
        if began is None:
            return f"{now - self.accepted_at:.3f} s"
        # A thread may begin with a request before the loop has noted that it is accepted.
        return f"{max(began - self.accepted_at, 0.0):.3f} s in the queue, {now - began:.3f} s computed"

    def end_as_told(self, output: pb.LLMEngineOutput) -> bool:
        """Whoever aborted it was told so, however a choice has ended in the engine meanwhile.

        True when it was handed over: nobody will come for it.
        """
        if not self.context.is_cancelled or output.finish_reason == pb.FINISH_REASON_ERROR:
            return False
        output.finish_reason = pb.FINISH_REASON_CANCELLED
        output.ClearField("stop_match")
        is_handed_over = output.HasField("prefill_handoff")
        output.ClearField("prefill_handoff")
        return is_handed_over

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


def count_tokens(outputs: StepOutputs) -> None:
    """Count what requests got in a step, whose callers pay for it even if they fail."""
    for context, number in Counter(outputs.contexts).items():
        live_in(context).num_tokens += number
    for context, output in outputs.outputs:
        live_in(context).num_tokens += len(output.token_ids)


def live_in(context: GenerateContext) -> Live:
    """The request that the table has put into a context."""
    assert isinstance(context.sink, Live), "every context in the engine was made by submit"
    return context.sink


def needs_preparation(request: pb.GenerateRequest) -> bool:
    """True for a request with something to compile or to decode before it can be accepted."""
    asked = request.request
    return asked.sampling_options.HasField("guided_decoding") or bool(asked.multi_modal_data)


def event_names(annotations: Iterable[str]) -> frozenset[str]:
    """The names of the events that annotations ask for: "key" and "key:value" ask for "key"."""
    return frozenset(annotation.partition(":")[0] for annotation in annotations) - {""}
