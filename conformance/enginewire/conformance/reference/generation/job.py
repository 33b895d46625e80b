"""One accepted request inside the reference, and its choices. State only."""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import dataclass, field

from enginewire import v1 as pb
from enginewire.conformance.reference.refusal import Refusal

Item = pb.LLMEngineOutput | Refusal | None
"""What a job's stream brings: an output, a failure as its last item, or None as its end."""


@dataclass(eq=False, slots=True)
class Choice:
    """One choice: all its output tokens so far, the first `handed_in` of them by `resume`."""

    job: Job
    index: int
    tokens: list[int] = field(default_factory=list)
    cum_log_probs: float = 0.0
    handed_in: int = 0
    is_finished: bool = False


@dataclass(eq=False, slots=True)
class Job:
    """One request. `blocks` is what it holds while it runs; `ready_at` when its first token is due.

    `came_at` is a time of the monotonic clock, as `ready_at` is.
    """

    request_id: str
    request: pb.PreprocessedRequest
    seed: int
    deadline: float = math.inf
    choices: list[Choice] = field(default_factory=list)
    items: asyncio.Queue[Item] = field(default_factory=asyncio.Queue)
    is_running: bool = False
    blocks: int = 0
    cached_tokens: int = 0
    ready_at: float = 0.0
    came_at: float = field(default_factory=time.monotonic)
    events: list[pb.EngineEvent] = field(default_factory=list)
    """Answers to its annotations that nobody has sent yet."""

    @property
    def open_choices(self) -> list[Choice]:
        """Those without a terminal."""
        return [choice for choice in self.choices if not choice.is_finished]

    @property
    def completion_tokens(self) -> int:
        """Output tokens over all choices."""
        return sum(len(choice.tokens) for choice in self.choices)
