"""The engine without threads: requests in, one `CoreOutputs` per step out.

`step` is the whole engine in one sentence: schedule, forward, sample, update. Knows nothing about event
loops, loading, gRPC or messages; everything here runs on the step thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from enginewire.server.failures import DeadlineExceeded, EngineError, StepFailed, internal
from enginewire.torch_engine.requests.scheduled import Scheduled
from enginewire.torch_engine.requests.sequence import Request, Sequence
from enginewire.torch_engine.runner.batch import LaunchedBatch, Runner, launch
from enginewire.torch_engine.runner.drafted_rows import ChosenRow, DraftedRows
from enginewire.torch_engine.runner.statistics import BatchStatistics, Counters
from enginewire.torch_engine.runner.unread_tokens import UnreadTokens
from enginewire.torch_engine.sampling.logits_rules import nothing_left
from enginewire.torch_engine.sampling.logprobs import is_prompt_usable
from enginewire.torch_engine.sampling.sampler import Row
from enginewire.torch_engine.scheduling.drafting.drafter import settle
from enginewire.torch_engine.scheduling.scheduler import Scheduler
from enginewire.torch_engine.work.kinds import work_of
from enginewire.torch_engine.work.live import LiveRequests
from enginewire.torch_engine.work.outbox import CoreOutputs, Outbox


class EngineCore:
    """Live requests, the scheduler and the model. One thread calls it."""

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        clock: Callable[[], float] = time.monotonic,
        *,
        runs_ahead: bool = False,
    ) -> None:
        """With `runs_ahead` a batch is launched before the tokens of the one before it are read."""
        self.scheduler = scheduler
        self.counters = Counters()
        self.statistics = BatchStatistics(clock)
        self._outbox = Outbox()
        self.live = LiveRequests(scheduler, self._outbox, self.counters)
        self._runner = runner
        self._clock = clock
        self._runs_ahead = runs_ahead
        self._ahead: LaunchedBatch | None = None

    @property
    def has_work(self) -> bool:
        """True when `step` has something to compute or to say."""
        return self.scheduler.has_work or self._outbox.has_news

    def add(self, request: Request) -> None:
        """Queue a request."""
        request.work = work_of(request, self.live, self._runner)
        self.live.start(request)

    def add_inputs(self, inputs: Collection[Request]) -> None:
        """Queue the inputs of one request to embed."""
        for each in inputs:
            self.add(each)
        self.counters.requests_added -= len(inputs) - 1

    def reset_counters(self) -> None:
        """Forget the totals so far."""
        self.counters.reset()
        self.statistics = BatchStatistics(self._clock)

    def take_outputs(self) -> CoreOutputs:
        """What happened since the last call."""
        return self._outbox.take(self.counters.steps)

    def step(self) -> None:
        """Schedule, forward, sample, update; the next batch may be under way before this one's update."""
        self._expire()
        launched, self._ahead = self._ahead or self._launch(self.scheduler.schedule()), None
        if launched is None:
            return
        launched.drop_freed()
        if launched.error:
            self._isolate(launched, launched.error)
        else:
            self._advance(launched)
            self._ahead = self._launch_ahead(launched)
            self._update(launched)

    def _launch(self, granted: list[Scheduled], unread: UnreadTokens | None = None) -> LaunchedBatch | None:
        if not granted:
            return None
        self.counters.steps += 1
        return launch(self._runner, granted, self.statistics, unread)

    def _launch_ahead(self, launched: LaunchedBatch) -> LaunchedBatch | None:
        """The batch after `launched`, while nobody but the device knows its tokens."""
        if not self._runs_ahead:
            return None
        results = launched.results
        assert results is not None, "nothing follows a batch with an error"
        if any(grant.sequence.needs_last_token for grant in launched.batch):
            return None
        sampled = [grant.sequence for grant in results.sampled]
        followed = [sequence for sequence in sampled if not sequence.will_end]
        for sequence in followed:
            sequence.num_unread_tokens = 1
        try:
            return self._launch(self.scheduler.schedule(), results.unread)
        finally:
            for sequence in followed:
                sequence.num_unread_tokens = 0

    def _isolate(self, launched: LaunchedBatch, error: Exception) -> None:
        """Run the sequences of a failed batch alone, so that only the guilty ones fail."""
        if len(launched.batch) == 1:
            self._fail_step(launched, error)
            return
        for grant in launched.batch:
            alone = None if grant.sequence.is_finished else self._launch([grant])
            if alone and alone.error:
                self._fail_step(alone, alone.error)
            elif alone:
                self._advance(alone)
                self._update(alone)

    def _fail_step(self, launched: LaunchedBatch, error: Exception) -> None:
        failure = internal("the model failed on this request", error)
        self._runner.check()  # on a lost device all requests would end like this, one after the other
        for grant in launched.batch:
            if not grant.sequence.is_finished:
                self.live.fail(grant.sequence.request, failure)

    def _advance(self, launched: LaunchedBatch) -> None:
        for grant in launched.batch:
            self.scheduler.advance(grant)

    def _update(self, launched: LaunchedBatch) -> None:
        results = launched.results
        assert results is not None, "a batch with an error is not updated"
        try:
            rows = results.read()
        except Exception as error:  # noqa: BLE001  # what a device reports this late nobody can be blamed for
            launched.stopwatch.failed()
            self._fail_step(launched, error)
            return
        launched.stopwatch.sampled()
        advanced = {grant.sequence for grant in launched.batch}
        self._take_all(rows, advanced)
        if results.drafted:
            self._verify(launched, results.drafted, rows, advanced)
        launched.stopwatch.succeeded()

    def _verify(
        self, launched: LaunchedBatch, drafted: DraftedRows, rows: list[ChosenRow], advanced: set[Sequence]
    ) -> None:
        """Go on behind every draft as long as it says what is chosen: each choice is made as it always is."""
        while confirmed := drafted.confirmed(rows):
            for grant in confirmed:
                self.scheduler.accept(grant.sequence)
            try:
                rows = drafted.read(confirmed)
            except Exception as error:  # noqa: BLE001  # as for the rows before
                self._fail_step(launched, error)
                return
            self._take_all(rows, advanced)
        for grant, num_right in drafted.judged():
            settle(grant, num_right, self.scheduler.pool)
            self.statistics.note_draft(len(grant.draft), num_right)

    def _take_all(self, rows: list[ChosenRow], advanced: set[Sequence]) -> None:
        for grant, row in rows:
            # Others have ended before, or a sibling failed in this very step.
            if grant.sequence in advanced and not grant.sequence.is_finished:
                self._take(grant, row, advanced)

    def _take(self, grant: Scheduled, row: Row, advanced: set[Sequence]) -> None:
        """Let a request go by a row of one of its sequences, which have `advanced` in this step."""
        request = grant.sequence.request
        try:
            if row.is_ruled_out:
                raise nothing_left(request, "token")
            if row.is_sound and is_prompt_usable(request):
                request.work.take(grant, row)
            else:
                self._reject(request, advanced)
        except EngineError as failure:
            self.live.fail(request, failure)

    def _reject(self, request: Request, advanced: set[Sequence]) -> None:
        """Fail a request whose logits are unusable, and let nobody else find what it computed."""
        cache = self.scheduler.prefix_cache
        blocks = {block for sequence in request.unfinished for block in cache.blocks_of(sequence)}
        self.live.fail(request, StepFailed("the model computes no finite logits"))
        # Who has joined the next batch may have found some of it.
        for grant in self._ahead.batch if self._ahead else []:
            sequence = grant.sequence
            if sequence not in advanced and not blocks.isdisjoint(sequence.block_table):
                self.scheduler.restart(sequence)
        cache.distrust(blocks)

    def _expire(self) -> None:
        for request in self.scheduler.expired(self._clock()):
            self.live.fail(request, DeadlineExceeded("the deadline passed before the request finished"))
