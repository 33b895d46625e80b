"""The engine without threads: requests in, one `CoreOutputs` per step out.

`step` is the whole engine in one sentence: schedule, forward, sample, update. Knows nothing about
event loops, loading or gRPC; everything here runs on the step thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace

from torch import Tensor

from enginewire import v1 as pb
from enginewire.server.engines.interface import GenerateContext
from enginewire.server.failures import DeadlineExceeded, EngineError, InvalidRequest, StepFailed, internal
from enginewire.torch_engine.embedding_waits import CoreOutputs
from enginewire.torch_engine.outbox import Outbox
from enginewire.torch_engine.requests.outputs import make_terminal, no_tokens, token_output
from enginewire.torch_engine.requests.scheduled import Scheduled
from enginewire.torch_engine.requests.scores import Continuation
from enginewire.torch_engine.requests.sequence import Finish, Request, Sequence
from enginewire.torch_engine.runner.batch import LaunchedBatch, Runner, launch
from enginewire.torch_engine.runner.statistics import BatchStatistics, Counters
from enginewire.torch_engine.runner.unread_tokens import UnreadTokens
from enginewire.torch_engine.runner.vectors import PartialSums, finish_vector
from enginewire.torch_engine.sampling.beam_search import BeamSearch, share_out
from enginewire.torch_engine.sampling.logits_rules import nothing_left
from enginewire.torch_engine.sampling.logprobs import is_prompt_usable, owes_prompt_scores
from enginewire.torch_engine.sampling.sampler import Row
from enginewire.torch_engine.scheduling.scheduler import Scheduler


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
        self._runner = runner
        self._clock = clock
        self._runs_ahead = runs_ahead
        self._ahead: LaunchedBatch | None = None
        self._live: dict[GenerateContext, Request] = {}
        self._searches: dict[Request, BeamSearch] = {}
        self._sums = PartialSums()
        self._computed: list[tuple[Request, memoryview]] = []
        self._outbox = Outbox()

    @property
    def has_work(self) -> bool:
        """True when `step` has something to compute or to say."""
        return self.scheduler.has_work or self._outbox.has_news

    def add(self, request: Request) -> None:
        """Queue a request. A choice that a resumed part has already completed ends at once."""
        self.counters.requests_added += 1
        self._live[request.context] = request
        self._outbox.open(request)
        if request.beams:
            self._searches[request] = BeamSearch(request.beams)
        self.scheduler.add(request)
        if not all(sequence.start_matching() for sequence in request.unfinished):
            field = "resume.choices.generated_token_ids"
            self.fail(request, InvalidRequest(f"{field}: must follow the grammar", field=field))
        if request.context.is_cancelled:  # while its grammar was compiled
            self.abort(request.context)
        for sequence in request.unfinished:
            finish = sequence.finish()
            if finish:
                self._end(sequence, no_tokens(sequence), finish)

    def add_all(self, requests: Iterable[Request]) -> None:
        """Queue requests that need nothing but a place."""
        for request in requests:
            self.add(request)

    def abort_each(self, requests: Iterable[Request]) -> None:
        """`abort` of every one of them."""
        for request in requests:
            self.abort(request.context)

    def abort(self, context: GenerateContext) -> None:
        """End every unfinished choice as cancelled. Unknown and finished requests are ignored."""
        request = self._live.get(context)
        if request in self._searches:
            self._end_search(request, self._searches[request].cancelled(request))
            return
        for sequence in request.unfinished if request else []:
            self._end(sequence, no_tokens(sequence), None)

    def fail(self, request: Request, error: EngineError) -> None:
        """End a whole request with a failure."""
        for sequence in request.unfinished:
            self.scheduler.release(sequence)
        self._forget(request)
        self._outbox.add_failure(request.context, error)

    def reject(self, request: Request, error: EngineError) -> None:
        """Fail a request that was never added."""
        request.forget_handed_over()
        self.counters.requests_added += 1
        self.counters.requests_finished += 1
        self._outbox.add_failure(request.context, error)

    def abort_all(self) -> None:
        """Cancel every live request."""
        for context in self.live_contexts():
            self.abort(context)

    def hand_back_waiting(self, error: EngineError) -> None:
        """Fail the requests that wait and have produced nothing; the others go on."""
        waiting = set(self.scheduler.waiting)
        for request in list(self._live.values()):
            if request.is_fresh and waiting.issuperset(request.unfinished):
                self.fail(request, error)

    def live_contexts(self) -> list[GenerateContext]:
        """The requests that have not ended."""
        return list(self._live)

    def reset_counters(self) -> None:
        """Forget the totals so far."""
        self.counters = Counters()
        self.statistics = BatchStatistics(self._clock)

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

    def take_outputs(self) -> CoreOutputs:
        """What happened since the last call."""
        return self._outbox.take(self.counters.steps)

    def take_computed(self) -> list[tuple[Request, memoryview]]:
        """The requests since the last call that `hands_over`, and their KV: they are no longer live here."""
        computed, self._computed = self._computed, []
        return computed

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
        followed = [sequence for sequence in results.rows if not sequence.will_end]
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
                self.fail(grant.sequence.request, failure)

    def _advance(self, launched: LaunchedBatch) -> None:
        for grant in launched.batch:
            self.scheduler.advance(grant)

    def _update(self, launched: LaunchedBatch) -> None:
        results = launched.results
        assert results is not None, "a batch with an error is not updated"
        try:
            rows = results.choice.read()
        except Exception as error:  # noqa: BLE001  # what a device reports this late nobody can be blamed for
            launched.stopwatch.failed()
            self._fail_step(launched, error)
            return
        launched.stopwatch.sampled()
        for scores, prompt_rows in results.scored:
            prompt_rows.add_to(scores)
        advanced = {grant.sequence for grant in launched.batch}
        for sequence, row in zip(results.rows, rows, strict=True):
            # Others have ended before, or a sibling failed in this very step.
            if sequence in advanced and not sequence.is_finished:
                self._take(sequence, row, advanced)
        self._pool(results.pooled, results.computed.sums)
        launched.stopwatch.succeeded()

    def _take(self, sequence: Sequence, row: Row, advanced: set[Sequence]) -> None:
        """Go by what a row says about its sequence, one of those that have `advanced` in this step."""
        if row.is_ruled_out:
            self.fail(sequence.request, nothing_left(sequence.request, "token"))
        elif not row.is_sound or not is_prompt_usable(sequence.request):
            self._reject(sequence.request, advanced)
        elif sequence.request.hands_over:
            self._hand_over(sequence)
        elif sequence.beam is not None:
            self._extend(sequence, row.continuations)
        else:
            self._append(sequence, row)

    def _pool(self, grants: list[Scheduled], sums: Tensor) -> None:
        """Add what a step computed to the vectors of its inputs; each ends with its last token."""
        for grant, part in zip(grants, sums, strict=True):
            if grant.sequence.block_table:  # else it ended, and its blocks are others'
                total = self._sums.add(grant, part)
                if grant.sequence.num_pending_tokens == 0:
                    self._end_vector(grant.sequence.request, total)

    def _end_vector(self, request: Request, total: Tensor) -> None:
        assert request.pooling is not None, "only requests that embed are pooled"
        vector = finish_vector(total, request.pooling)
        if vector is None:
            self.fail(request, StepFailed("the model computes no finite vector"))
            return
        for sequence in request.unfinished:
            self.scheduler.release(sequence)
        self._forget(request)
        self._outbox.add_vector(request.context, vector)

    def _reject(self, request: Request, advanced: set[Sequence]) -> None:
        """Fail a request whose logits are unusable, and let nobody else find what it computed."""
        cache = self.scheduler.prefix_cache
        blocks = {block for sequence in request.unfinished for block in cache.blocks_of(sequence)}
        self.fail(request, StepFailed("the model computes no finite logits"))
        # Who has joined the next batch may have found some of it.
        for grant in self._ahead.batch if self._ahead else []:
            sequence = grant.sequence
            if sequence not in advanced and not blocks.isdisjoint(sequence.block_table):
                self.scheduler.restart(sequence)
        cache.distrust(blocks)

    def _hand_over(self, sequence: Sequence) -> None:
        """The prompt is computed. Its last token is computed again where its logits are needed."""
        request = sequence.request
        try:
            payload = self._runner.read_kv(sequence, len(request.prompt_token_ids) - 1)
        except Exception as error:  # noqa: BLE001  # torch raises anything; it must stay in this request
            self.fail(request, internal("the hand-off could not be made", error))
            return
        self.scheduler.release(sequence)
        self._forget(request)
        self._computed.append((request, payload))

    def _append(self, sequence: Sequence, row: Row) -> None:
        if not sequence.append(row.token_id):
            self.fail(
                sequence.request, StepFailed("the output left its grammar, or that is too slow to follow")
            )
            return
        self.counters.tokens_generated += 1
        logprobs = row.logprobs
        if logprobs is not None:
            sequence.cum_log_prob += logprobs.token
        finish = sequence.finish()
        if finish:
            self._end(sequence, token_output(sequence, logprobs), finish)
        elif logprobs is not None or owes_prompt_scores(sequence):
            self._outbox.add_output(sequence, token_output(sequence, logprobs))
        else:
            self._outbox.add_token(sequence)

    def _extend(self, sequence: Sequence, continuations: tuple[Continuation, ...]) -> None:
        """Note how a beam may go on; the last beam of its request to know lets all of them go on."""
        assert sequence.beam is not None, "only beams have continuations"
        sequence.beam = replace(sequence.beam, continuations=continuations)
        request = sequence.request
        beams = request.unfinished
        if not all(beam.is_idle for beam in beams):
            return
        search = self._searches[request]
        successors = search.advance(beams)
        if successors:
            restarted, left_over = share_out(successors, beams)
            for beam in restarted:
                self.scheduler.restart(beam)
            for beam in left_over:
                self.scheduler.release(beam)
        elif len(search.hypotheses) < search.rules.n:
            self.fail(request, nothing_left(request, "further hypothesis"))
        else:
            self._end_search(request, search.outputs(request))

    def _end_search(self, request: Request, outputs: list[pb.LLMEngineOutput]) -> None:
        for sequence in request.unfinished:
            self.scheduler.release(sequence)
        self._outbox.add_outputs(request, outputs)
        self.counters.tokens_generated += sum(len(output.token_ids) for output in outputs)
        self._forget(request)

    def _end(self, sequence: Sequence, output: pb.LLMEngineOutput, finish: Finish | None) -> None:
        request = sequence.request
        self.scheduler.release(sequence)
        make_terminal(output, sequence, finish)
        self._outbox.add_output(sequence, output)
        if not request.unfinished:
            self._forget(request)

    def _forget(self, request: Request) -> None:
        del self._live[request.context]
        self._outbox.close(request)
        self._sums.forget(request)
        self._searches.pop(request, None)
        self.counters.requests_finished += 1

    def _expire(self) -> None:
        for request in self.scheduler.expired(self._clock()):
            self.fail(request, DeadlineExceeded("the deadline passed before the request finished"))
