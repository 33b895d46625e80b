"""The engine without threads: requests in, one `StepOutputs` per step out.

`step` is the whole engine in one sentence: schedule, forward, sample, update. Knows nothing about
event loops, loading or gRPC; everything here runs on the step thread.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from engine_server.failures import DeadlineExceeded, EngineError, InvalidRequest, StepFailed
from engine_server.interface import GenerateContext, StepOutputs
from engine_server.torch_engine.best_of import Candidates
from engine_server.torch_engine.model_runner import batch_order
from engine_server.torch_engine.outputs import make_terminal, no_tokens, token_output
from engine_server.torch_engine.sampler import Sampled, sample
from engine_server.torch_engine.scheduler import Scheduled, Scheduler
from engine_server.torch_engine.sequence import Finish, Request, Sequence
from enginewire import v1 as pb

log = logging.getLogger(__name__)


class Runner(Protocol):
    """Computes a batch that is in `batch_order`; logits [rows, vocab] of the grants that sample."""

    def forward(self, batch: list[Scheduled]) -> Tensor:
        """Raise anything: only the requests of the batch will fail."""
        ...


@dataclass(slots=True)
class Counters:
    """Totals since start."""

    steps: int = 0
    requests_added: int = 0
    requests_finished: int = 0
    tokens_generated: int = 0


class EngineCore:
    """Live requests, the scheduler and the model. One thread calls it."""

    def __init__(
        self, scheduler: Scheduler, runner: Runner, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.scheduler = scheduler
        self.counters = Counters()
        self._runner = runner
        self._clock = clock
        self._live: dict[GenerateContext, Request] = {}
        self._candidates: dict[Request, Candidates] = {}
        self._outputs = StepOutputs(step=0)

    @property
    def has_work(self) -> bool:
        """True when `step` has something to compute or to say."""
        out = self._outputs
        return self.scheduler.has_work or bool(out.outputs or out.failures)

    def add(self, request: Request) -> None:
        """Queue a request. A choice that a resumed part has already completed ends at once."""
        self.counters.requests_added += 1
        self._live[request.context] = request
        if request.best_of:
            self._candidates[request] = Candidates(request.best_of)
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

    def abort(self, context: GenerateContext) -> None:
        """End every unfinished choice as cancelled. Unknown and finished requests are ignored."""
        request = self._live.get(context)
        for sequence in request.unfinished if request else []:
            self._end(sequence, no_tokens(sequence), None)

    def fail(self, request: Request, error: EngineError) -> None:
        """End a whole request with a failure."""
        for sequence in request.unfinished:
            self.scheduler.release(sequence)
        self._forget(request)
        self._outputs.failures.append((request.context, error))

    def reject(self, request: Request, error: EngineError) -> None:
        """Fail a request that was never added."""
        self.counters.requests_added += 1
        self.counters.requests_finished += 1
        self._outputs.failures.append((request.context, error))

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

    def step(self) -> None:
        """Schedule, forward, sample, update."""
        self._expire()
        batch = sorted(self.scheduler.schedule(), key=batch_order)
        if batch:
            self.counters.steps += 1
            self._run(batch)

    def take_outputs(self) -> StepOutputs:
        """What happened since the last call."""
        outputs, self._outputs = self._outputs, StepOutputs(step=self.counters.steps)
        outputs.step = self.counters.steps
        return outputs

    def _run(self, batch: list[Scheduled]) -> None:
        rows = [grant.sequence for grant in batch if grant.samples]
        try:
            sampled = sample(self._runner.forward(batch), rows)
        except Exception as error:  # noqa: BLE001  # torch raises anything; it must stay in this batch
            self._isolate(batch, error)
        else:
            self._update(batch, rows, sampled)

    def _isolate(self, batch: list[Scheduled], error: Exception) -> None:
        """Run the sequences of a failed batch alone, so that only the guilty ones fail."""
        if len(batch) == 1:
            log.error("a request failed in the model: %s", type(error).__name__, exc_info=error)
            self.fail(batch[0].sequence.request, StepFailed("the model failed on this request"))
            return
        for grant in batch:
            if not grant.sequence.is_finished:
                self._run([grant])

    def _update(self, batch: list[Scheduled], rows: list[Sequence], sampled: Sampled) -> None:
        for grant in batch:
            grant.sequence.num_computed_tokens += grant.num_tokens
        for row, sequence in enumerate(rows):
            if sequence.is_finished:  # a sibling failed in this very step
                continue
            if sampled.valid[row]:
                self._append(sequence, sampled, row)
            else:
                self.fail(sequence.request, StepFailed("logits and rules leave no token to choose"))

    def _append(self, sequence: Sequence, sampled: Sampled, row: int) -> None:
        if not sequence.append(sampled.token_ids[row]):
            self.fail(
                sequence.request, StepFailed("the output left its grammar, or that is too slow to follow")
            )
            return
        self.counters.tokens_generated += 1
        logprobs = sampled.logprobs[row]
        if logprobs is not None:
            sequence.cum_log_prob += logprobs.token
        finish = sequence.finish()
        if finish:
            self._end(sequence, token_output(sequence, logprobs), finish)
        elif logprobs is not None:
            self._deliver(sequence, token_output(sequence, logprobs))
        else:
            self._add_row(sequence)

    def _add_row(self, sequence: Sequence) -> None:
        out = self._outputs
        out.contexts.append(sequence.request.context)
        out.indexes.append(sequence.index)
        out.positions.append(sequence.num_output_tokens - 1)
        out.token_ids.append(sequence.token_ids[-1])

    def _end(self, sequence: Sequence, output: pb.LLMEngineOutput, finish: Finish | None) -> None:
        request = sequence.request
        self.scheduler.release(sequence)
        make_terminal(output, sequence, finish)
        self._deliver(sequence, output)
        if not request.unfinished:
            self._forget(request)

    def _deliver(self, sequence: Sequence, output: pb.LLMEngineOutput) -> None:
        request = sequence.request
        candidates = self._candidates.get(request)
        ready = candidates.take(sequence, output) if candidates else [output]
        self._outputs.outputs += [(request.context, output) for output in ready]

    def _forget(self, request: Request) -> None:
        del self._live[request.context]
        self._candidates.pop(request, None)
        self.counters.requests_finished += 1

    def _expire(self) -> None:
        for request in self.scheduler.expired(self._clock()):
            self.fail(request, DeadlineExceeded("the deadline passed before the request finished"))
