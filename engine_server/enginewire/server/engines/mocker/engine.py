"""A step engine without a model: same scheduling, accounting and failures, invented tokens.

`MockerEngine` queues requests, reserves KV blocks, prefills in chunks and emits one token per running
sequence and step, all on the event loop. What the tokens are: `model`. Needs neither torch
nor any file; knows nothing about gRPC.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence as Seq
from contextlib import aclosing

from enginewire import v1 as pb
from enginewire.server.engines.interface import (
    AdapterSource,
    GenerateContext,
    Item,
    MetricsBindings,
    MetricsContext,
    StepListener,
    StepOutputs,
    Tokenizer,
)
from enginewire.server.engines.mocker.adapters import MockerAdapters
from enginewire.server.engines.mocker.embeddings import SIZE as EMBEDDING_SIZE, MockerEmbeddings
from enginewire.server.engines.mocker.options import Fault, MockerOptions
from enginewire.server.engines.mocker.reader import RequestReader, engine_config
from enginewire.server.engines.mocker.sequence import Request, Sequence
from enginewire.server.engines.mocker.timer import StepTimer
from enginewire.server.engines.mocker.tokenizer import byte_tokenizer
from enginewire.server.engines.mocker.transfers import MockerTransfers
from enginewire.server.engines.step_streams import StepStreams
from enginewire.server.failures import (
    DeadlineExceeded,
    Draining,
    EngineDead,
    EngineError,
    NotStarted,
    StepFailed,
)
from enginewire.server.handoff.requests import ENGINE_ROLES, is_handed_over

__all__ = ["MockerEngine", "MockerOptions"]


class MockerEngine:
    """An engine for tests, demonstrations and load generators. Lives on the event loop of `start`."""

    def __init__(self, options: MockerOptions | None = None) -> None:
        self._options = options or MockerOptions()
        self._fault = Fault.parse(self._options.fault) if self._options.fault else None
        self._streams = StepStreams(ENGINE_ROLES[self._options.role])
        self._transfers: MockerTransfers | None = None
        self._reader: RequestReader | None = None
        self._is_closed = False
        self._adapters = MockerAdapters()
        self._live: dict[GenerateContext, Request] = {}
        self._waiting: deque[Request] = deque()
        self._prefilling: list[Sequence] = []
        self._decoding: list[Sequence] = []
        self._cancelled: list[GenerateContext] = []
        self._embeddings = MockerEmbeddings(self._options.ttft_ms / 1000, self._options.itl_ms / 1000)
        self.embedding_size = EMBEDDING_SIZE
        self.only_embeds = False
        self._load = pb.Load(kv_blocks_total=self._options.num_kv_blocks)
        self._earliest_deadline = math.inf
        self._next_tokens_at = 0.0
        self._timer = StepTimer(self._step)

    async def start(self, worker_id: int) -> pb.EngineConfig:
        """Nothing to load. `worker_id` is not needed here. Raises KvFolderError."""
        if self._reader or self._is_closed:
            raise EngineDead("an engine starts once")
        if self._options.transfer:
            self._transfers = MockerTransfers(self._options.transfer, self._options.model)
        self._reader = RequestReader(self._options)
        return engine_config(self._options)

    def set_step_listener(self, listener: StepListener) -> None:
        """Register who receives every step's outputs."""
        self._streams.listener = listener

    def check(self, request: pb.PreprocessedRequest, context: GenerateContext) -> Request:
        """Read a request, or raise an EngineError."""
        if self._is_closed:
            raise EngineDead("the engine is closed")
        if self._reader is None:
            raise NotStarted("the engine is still starting")
        return self._reader.read(request, context, self._adapters.digest(request.routing.lora_name))

    def submit(self, request: pb.PreprocessedRequest, context: GenerateContext) -> None:
        """Queue a request, or raise an EngineError."""
        accepted, adapter = self.check(request, context), self._adapters.digest(request.routing.lora_name)
        if self._transfers and is_handed_over(request, self._options.role):
            self._transfers.claim(request, adapter)
        self._live[context] = accepted
        self._waiting.append(accepted)
        self._load.waiting += 1
        self._load.waiting_tokens += accepted.prompt_tokens
        self._earliest_deadline = min(self._earliest_deadline, _deadline(context))
        self._timer.call_in(0.0)

    async def generate(
        self, request: pb.PreprocessedRequest, context: GenerateContext
    ) -> AsyncIterator[Item]:
        """`submit` as a stream of its own. Closing it early frees the request."""
        async with aclosing(self._streams.run(self, request, context)) as outputs:
            async for output in outputs:
                yield output

    async def embed(
        self, request: pb.PreprocessedEmbeddingRequest, context: GenerateContext
    ) -> pb.EmbeddingsEngineOutput:
        """The vectors, after a while."""
        self._adapters.digest(context.routing.lora_name)
        try:
            return await self._embeddings.embed(request, context.routing.lora_name)
        finally:
            self._load.requests_finished += 1

    async def abort(self, context: GenerateContext) -> None:
        """End a request at once; its choices end as cancelled. Idempotent."""
        if context in self._live:
            self._cancelled.append(context)
            self._timer.call_in(0.0)

    async def drain(self) -> None:
        """Hand back what waits."""
        outputs = StepOutputs(self._load.step)
        for request in list(self._waiting):
            self._fail(request, Draining("the server is draining"), outputs)
        self._streams(outputs)

    async def cleanup(self) -> None:
        """Cancel what is live and stop stepping. Idempotent."""
        self._is_closed = True
        self._timer.stop()
        outputs = StepOutputs(self._load.step)
        for request in list(self._live.values()):
            self._cancel(request, outputs)
        self._streams(outputs)
        if self._transfers:
            self._transfers.close()
            self._transfers = None
        self._reader = None

    async def load_adapter(self, adapter: AdapterSource) -> int:
        """Any folder will do; what it says about its rank is believed."""
        return await self._adapters.load(adapter)

    async def unload_adapter(self, name: str) -> None:
        """Forget the name."""
        self._adapters.unload(name)

    def discard_handoff(self, request_id: str) -> None:
        """Free the unclaimed hand-off of a request that has ended."""
        if self._transfers:
            self._transfers.discard(request_id)

    async def kv_event_sources(self) -> Seq[pb.KvEventSource]:
        """None: there is no prefix cache."""
        return []

    async def setup_metrics(self, context: MetricsContext) -> MetricsBindings:
        """The engine has no metrics of its own beside `load`."""
        return MetricsBindings()

    def load(self) -> pb.Load:
        """The load right now."""
        load = pb.Load()
        load.CopyFrom(self._load)
        load.running = len(self._prefilling) + len(self._decoding)
        load.waiting += self._embeddings.num_waiting
        load.pending_transfers = self._transfers.num_pending if self._transfers else 0
        return load

    def tokenizer(self) -> Tokenizer | None:
        """One token per byte."""
        return byte_tokenizer()

    def stalled_for(self) -> float:
        """Seconds the next step is late, beyond a grace for a busy event loop."""
        return self._timer.stalled_for()

    def _step(self) -> None:
        if self._fault and self._fault.stalls(self._load.step + 1):
            return
        # The step stays due until it is done: one that raises never is, and shows as a stall.
        now = time.monotonic()
        outputs = StepOutputs(self._load.step)
        self._reap(now, outputs)
        self._admit(now)
        if now >= self._next_tokens_at and (self._prefilling or self._decoding):
            self._compute(now, outputs)
        self._streams(outputs)
        self._plan_next_step(now)

    def _plan_next_step(self, now: float) -> None:
        self._timer.stop()
        if not self._live:
            return
        at = min((sequence.ready_at for sequence in self._prefilling), default=math.inf)
        if self._decoding or not self._prefilling:
            at = now
        at = now if self._cancelled else min(max(at, self._next_tokens_at), self._earliest_deadline)
        self._timer.call_in(max(at - now, 0.0))

    def _reap(self, now: float, outputs: StepOutputs) -> None:
        """End what was cancelled or is too late, wherever it is."""
        for context in self._cancelled:
            if context in self._live:
                self._cancel(self._live[context], outputs)
        self._cancelled.clear()
        if now < self._earliest_deadline:
            return
        for request in [request for context, request in self._live.items() if _deadline(context) <= now]:
            self._fail(request, DeadlineExceeded("the deadline passed"), outputs)
        self._earliest_deadline = min(map(_deadline, self._live), default=math.inf)

    def _admit(self, now: float) -> None:
        """Start waiting requests in order, as long as sequences and blocks are free."""
        while self._waiting:
            request = self._waiting[0]
            sequences = request.sequences
            num_running = len(self._prefilling) + len(self._decoding)
            blocks = request.blocks_per_sequence * len(sequences)
            if num_running + len(sequences) > self._options.max_num_seqs:
                return
            if self._load.kv_blocks_used + blocks > self._options.num_kv_blocks:
                return
            self._leave_queue(request)
            request.begin(now)
            self._load.kv_blocks_used += blocks
            for sequence in sequences:
                sequence.ready_at = now + self._options.ttft_ms / 1000
            self._prefilling += sequences

    def _compute(self, now: float, outputs: StepOutputs) -> None:
        outputs.step = self._load.step = self._load.step + 1
        self._next_tokens_at = now + self._options.itl_ms / 1000
        if self._fault:
            self._fail_on_purpose(self._fault, outputs)
        self._prefill(now, outputs)
        self._decode(outputs)

    def _prefill(self, now: float, outputs: StepOutputs) -> None:
        budget = self._options.max_num_batched_tokens - len(self._decoding)
        for sequence in self._prefilling:
            computed = min(budget, sequence.num_prefill_tokens - sequence.num_computed_tokens)
            sequence.num_computed_tokens += computed
            budget -= computed
        done = [s for s in self._prefilling if s.is_prefilled and s.ready_at <= now]
        if done:
            self._prefilling = [s for s in self._prefilling if s not in done]
            outputs.events += [event for sequence in done for event in sequence.request.take_events()]
            self._decoding += [sequence for sequence in done if not self._hand_over(sequence, outputs)]

    def _hand_over(self, sequence: Sequence, outputs: StepOutputs) -> bool:
        """End a request here that goes on elsewhere; False when it does not."""
        request = sequence.request
        if self._transfers is None or not request.prompt_digest:
            return False
        name, prompt = request.context.request_id, request.prompt_digest
        try:
            handoff = self._transfers.offer(name, prompt, request.prompt_tokens)
        except EngineError as failure:
            self._fail(request, failure, outputs)
            return True
        output = sequence.empty_output()
        output.prefill_handoff.CopyFrom(handoff)
        sequence.finish(output, pb.FINISH_REASON_LENGTH)
        outputs.outputs.append((request.context, output))
        self._release(request, 1)
        return True

    def _decode(self, outputs: StepOutputs) -> None:
        """One token per sequence. The loop is the hot path: nothing but appends for bare tokens."""
        contexts, indexes = outputs.contexts.append, outputs.indexes.append
        positions, token_ids = outputs.positions.append, outputs.token_ids.append
        paused = []
        for sequence in self._decoding:
            position = sequence.position
            if position < sequence.pause_at:
                contexts(sequence.context)
                indexes(sequence.index)
                positions(position)
                token_ids(sequence.ahead[position - sequence.ahead_begin])
                sequence.position = position + 1
            else:
                paused.append(sequence)
        self._load.tokens_generated += len(outputs.token_ids)
        for sequence in paused:
            self._emit(sequence, outputs)

    def _emit(self, sequence: Sequence, outputs: StepOutputs) -> None:
        if sequence.is_out_of_tokens:
            sequence.look_ahead()
        output = sequence.output()
        self._load.tokens_generated += len(output.token_ids)
        outputs.outputs.append((sequence.context, output))
        if sequence.is_finished:
            self._decoding.remove(sequence)
            self._release(sequence.request, 1)

    def _cancel(self, request: Request, outputs: StepOutputs) -> None:
        sequences = self._take_out(request)
        for sequence in sequences:
            output = sequence.empty_output()
            sequence.finish(output, pb.FINISH_REASON_CANCELLED)
            outputs.outputs.append((request.context, output))
        self._release(request, len(sequences))

    def _fail(self, request: Request, failure: EngineError, outputs: StepOutputs) -> None:
        sequences = self._take_out(request)
        request.sequences.clear()
        outputs.failures.append((request.context, failure))
        self._release(request, len(sequences))

    def _take_out(self, request: Request) -> list[Sequence]:
        """Remove the request from queue and batch; returns its unfinished choices."""
        if request.is_running:
            self._prefilling = [s for s in self._prefilling if s.request is not request]
            self._decoding = [s for s in self._decoding if s.request is not request]
        else:
            self._leave_queue(request)
        return list(request.sequences)

    def _leave_queue(self, request: Request) -> None:
        self._waiting.remove(request)
        self._load.waiting -= 1
        self._load.waiting_tokens -= request.prompt_tokens

    def _release(self, request: Request, num_sequences: int) -> None:
        if request.is_running:
            self._load.kv_blocks_used -= request.blocks_per_sequence * num_sequences
        if not request.sequences:
            del self._live[request.context]
            self._load.requests_finished += 1

    def _fail_on_purpose(self, fault: Fault, outputs: StepOutputs) -> None:
        running = [request for request in self._live.values() if request.is_running]
        for request in [each for each in running if fault.fails(each.context.request_id, self._load.step)]:
            self._fail(request, StepFailed("a fault was asked for"), outputs)


def _deadline(context: GenerateContext) -> float:
    return math.inf if context.deadline is None else context.deadline
