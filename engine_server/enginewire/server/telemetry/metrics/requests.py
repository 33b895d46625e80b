"""Counts what requests do, from what the table of live requests sees of them. Without it nobody counts.

A step is counted as a whole: while the same choices get a token in every step, its cost does not depend
on how many they are, but for a comparison of two lists. Lives on the event loop. Knows nothing about gRPC,
engines or who looks at the totals.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from enginewire import v1 as pb
from enginewire.metrics.labels import FINISHED
from enginewire.server.admission.live import Accepted, Failed, Live
from enginewire.server.admission.observer import Observer
from enginewire.server.admission.origin import Origin
from enginewire.server.admission.queue.limits import CALLER_LIMIT
from enginewire.server.engines.interface import GenerateContext, StepOutputs
from enginewire.server.failures import EngineError
from enginewire.server.telemetry.metrics.totals import LiveTimes, Totals
from enginewire.server.validation.payloads import prompt_length

Row = GenerateContext | tuple[GenerateContext, int]
"""A choice. The first one of a request is its context: most requests have no other."""


class RequestMetrics(Observer):
    """Counts what a table tells it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.totals = Totals()
        self._clock = clock
        self._live: dict[GenerateContext, LiveTimes] = {}
        # The columns of the last step, the choices in them, and when that was: the last token of each.
        self._contexts: Sequence[GenerateContext] = ()
        self._indexes: Sequence[int] = ()
        self._rows: set[Row] = set()
        self._rows_at = 0.0

    @property
    def num_live(self) -> int:
        """Requests whose end is still to come."""
        return len(self._live)

    def accepted(self, context: GenerateContext, request: Accepted) -> None:
        """A request is in the engine."""
        if isinstance(request, pb.PreprocessedRequest):
            self.totals.take_wanted(request)
            num_resumed = sum(len(choice.generated_token_ids) for choice in request.resume.choices)
            self._live[context] = LiveTimes(self._clock(), prompt_length(request), num_resumed)
        else:
            num_tokens = sum(len(each.token_ids) for each in request.token_ids)
            self._live[context] = LiveTimes(self._clock(), num_tokens)

    def refused(self, request_id: str, request: Accepted, origin: Origin, why: EngineError) -> None:
        """A request was not let in."""
        self.totals.refused[why.reason] += 1
        self.totals.over_limit += CALLER_LIMIT in why.metadata

    def step(self, outputs: StepOutputs) -> None:
        """What one step produced. Its failures are counted as they end their requests."""
        now = self._clock()
        self.totals.generated_tokens += len(outputs.token_ids)
        if outputs.contexts == self._contexts and outputs.indexes == self._indexes:
            self.totals.between_tokens.observe(now - self._rows_at, len(self._contexts))
        else:
            self._change_rows(outputs.contexts, outputs.indexes, now)
        self._rows_at = now
        for context, output in outputs.outputs:
            self._take_output(context, output, now)

    def slow(self) -> None:
        """A reader was given up. The end of its request, which is aborted, is still to come."""
        self.totals.failed[pb.ERROR_REASON_SLOW_CONSUMER] += 1

    def ended(self, live: Live, usage: pb.CompletionUsage, failed: Failed) -> None:
        """A request has ended, and so have those of its choices that had no terminal output."""
        context, totals = live.context, self.totals
        prompt_tokens = self._live[context].num_prompt_tokens
        totals.take_caller(live.party, prompt_tokens, usage.completion_tokens or live.num_tokens)
        times = self._live.pop(context)
        if failed is not None:
            is_aborted = failed == pb.ERROR_REASON_CANCELLED
            totals.failed[failed] += 1
            totals.finished["abort" if is_aborted else "error"] += live.open_choices
            return
        totals.finished["stop"] += live.open_choices  # only what is embedded has no terminal output
        if not context.is_cancelled:
            totals.take_end(context, times, usage, self._clock())

    def _change_rows(self, contexts: list[GenerateContext], indexes: list[int], now: float) -> None:
        """A step of other choices than the last one: some began, some ended or made a pause."""
        rows = set(map(_row, contexts, indexes)) if any(indexes) else set[Row](contexts)
        if len(rows) < len(contexts):
            self._take_runs(Counter(map(_row, contexts, indexes)), now)
            return
        left, arrived = self._rows - rows, rows - self._rows
        self._leave(left)
        self.totals.between_tokens.observe(now - self._rows_at, len(self._rows) - len(left))
        for row in arrived:
            self._take(*_split(row), 1, now)
        self._contexts, self._indexes, self._rows = contexts, indexes, rows

    def _take_runs(self, runs: Counter[Row], now: float) -> None:
        """A step that gave some choice several tokens."""
        self._leave(self._rows)
        self._contexts, self._indexes, self._rows = (), (), set()
        for row, num_tokens in runs.items():
            self._take(*_split(row), num_tokens, now)

    def _leave(self, rows: Iterable[Row]) -> None:
        """Remember when choices got their last token that get none in this step."""
        for context, index in map(_split, rows):
            if (times := self._live.get(context)) is not None:
                times.last_token_at[index] = self._rows_at

    def _take_output(self, context: GenerateContext, output: pb.LLMEngineOutput, now: float) -> None:
        if context not in self._live:
            return
        if num_tokens := len(output.token_ids):
            self.totals.generated_tokens += num_tokens
            self._take(context, output.index, num_tokens, now)
        if output.finish_reason:
            self.totals.finished[FINISHED.get(output.finish_reason, "error")] += 1
        if output.HasField("completion_usage"):
            details = output.completion_usage.prompt_tokens_details
            self.totals.cached_prompt_tokens += details.cached_tokens

    def _take(self, context: GenerateContext, index: int, num_tokens: int, now: float) -> None:
        """A choice got tokens; those that came together share the time since the one before them."""
        times = self._live.get(context)
        if times is None:
            return
        is_in_columns = _row(context, index) in self._rows
        last = self._rows_at if is_in_columns else times.last_token_at.get(index)
        if last is not None:
            self.totals.between_tokens.observe((now - last) / num_tokens, num_tokens)
        elif times.first_token_at is None:
            # An engine may know of it before the output that carries it.
            notified_at = context.first_token_at
            self.totals.take_first_token(times, now if notified_at is None else min(notified_at, now))
        times.last_token_at[index] = now


def _row(context: GenerateContext, index: int) -> Row:
    return (context, index) if index else context


def _split(row: Row) -> tuple[GenerateContext, int]:
    return row if isinstance(row, tuple) else (row, 0)
