"""What the core has done: how much, how large its batches were and how long each part of a step took.

Written by the step thread alone; whoever reads it on another thread sees each number whole. Knows nothing
about torch or about who reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence as Seq
from dataclasses import dataclass

from enginewire.metrics.histogram import BETWEEN_TOKENS_SECONDS, Histogram
from enginewire.torch_engine.requests.scheduled import Scheduled

# vLLM's bounds.
STEP_TOKENS = (1.0, *(float(8 * 2**power) for power in range(12)))


class MethodStatistics:
    """Steps of one method. Times in seconds; the parts are the model, choosing tokens, and the rest."""

    __slots__ = ("forward", "num_failed", "num_succeeded", "sampling", "update", "whole")

    def __init__(self) -> None:
        self.num_succeeded = 0
        self.num_failed = 0
        self.whole = Histogram(BETWEEN_TOKENS_SECONDS)
        self.forward = Histogram(BETWEEN_TOKENS_SECONDS)
        self.sampling = Histogram(BETWEEN_TOKENS_SECONDS)
        self.update = Histogram(BETWEEN_TOKENS_SECONDS)


class DraftStatistics:
    """Drafts that were made and judged. `num_accepted[i]` of them had a right token number i."""

    __slots__ = ("num_accepted", "num_drafts", "num_tokens")

    def __init__(self, most: int) -> None:
        """No draft has more than `most` tokens."""
        self.num_drafts = 0
        self.num_tokens = 0
        self.num_accepted = [0] * most

    def note(self, num_drafted: int, num_right: int) -> None:
        """One draft."""
        self.num_drafts += 1
        self.num_tokens += num_drafted
        for place in range(num_right):
            self.num_accepted[place] += 1


class BatchStatistics:
    """All steps. In one of `prefill` some sequence computes several tokens, in one of `decode` none does.

    Drafted tokens do not count there. `drafts` is None in an engine that makes none.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.drafts: DraftStatistics | None = None
        self.methods = {"prefill": MethodStatistics(), "decode": MethodStatistics()}
        self.num_tokens = Histogram(STEP_TOKENS)
        self._clock = clock

    def note_draft(self, num_drafted: int, num_right: int) -> None:
        """A draft of `num_drafted` tokens began with `num_right` right ones."""
        if self.drafts:
            self.drafts.note(num_drafted, num_right)

    def begin(self, batch: Seq[Scheduled]) -> Stopwatch:
        """A batch in `batch_order` is about to be computed; for some requests it is the first one."""
        now = self._clock()
        for grant in batch:
            context = grant.sequence.request.context
            if context.running_since is None:
                context.running_since = now
        self.num_tokens.observe(sum(grant.num_tokens for grant in batch))
        has_several = batch[-1].num_tokens > 1 and any(grant.num_pending_tokens > 1 for grant in batch)
        method = self.methods["prefill" if has_several else "decode"]
        return Stopwatch(method, now, self._clock)


class Stopwatch:
    """One batch on its way through the model."""

    __slots__ = ("_began_at", "_clock", "_forwarded_at", "_method", "_sampled_at")

    def __init__(self, method: MethodStatistics, now: float, clock: Callable[[], float]) -> None:
        self._method = method
        self._clock = clock
        self._began_at = self._forwarded_at = self._sampled_at = now

    def forwarded(self) -> None:
        """The model has answered; on a GPU it may still be computing what it answered."""
        self._forwarded_at = self._clock()

    def sampled(self) -> None:
        """The tokens are known."""
        self._sampled_at = self._clock()

    def failed(self) -> None:
        """There are no tokens."""
        self._method.num_failed += 1

    def succeeded(self) -> None:
        """The sequences have their tokens."""
        method, now = self._method, self._clock()
        method.num_succeeded += 1
        method.forward.observe(self._forwarded_at - self._began_at)
        method.sampling.observe(self._sampled_at - self._forwarded_at)
        method.update.observe(now - self._sampled_at)
        method.whole.observe(now - self._began_at)


@dataclass(slots=True)
class Counters:
    """Totals since start, which others read as part of a snapshot."""

    steps: int = 0
    requests_added: int = 0
    requests_finished: int = 0
    tokens_generated: int = 0

    def reset(self) -> None:
        """Begin again."""
        self.steps = self.requests_added = self.requests_finished = self.tokens_generated = 0
