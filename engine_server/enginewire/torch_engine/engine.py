"""`TorchEngine`: the engine as the shell sees it.

Checks and queues requests on the event loop; the step thread does the work. Importing this
module imports no torch.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence as Seq
from concurrent.futures import Future
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING

from enginewire import v1 as pb
from enginewire.server.engines.interface import (
    AdapterSource,
    GenerateContext,
    Item,
    MetricsBindings,
    MetricsContext,
    StepListener,
    Tokenizer,
)
from enginewire.server.engines.step_streams import StepStreams
from enginewire.server.failures import (
    Draining,
    EngineDead,
    InvalidRequest,
    ModelNotFound,
    NotStarted,
    Unsupported,
)
from enginewire.server.handoff.requests import ENGINE_ROLES, is_handed_over
from enginewire.torch_engine.frontend.adapters import LoadedAdapters
from enginewire.torch_engine.frontend.arrivals import arrive
from enginewire.torch_engine.frontend.capabilities import engine_config
from enginewire.torch_engine.frontend.embedding_waits import EmbeddingWaits
from enginewire.torch_engine.frontend.kv_events import KvEventLog
from enginewire.torch_engine.frontend.transfers import Transfers
from enginewire.torch_engine.options import TorchEngineOptions
from enginewire.torch_engine.requests.adapter import Adapter
from enginewire.torch_engine.requests.limits import RequestLimits
from enginewire.torch_engine.requests.params import Guide
from enginewire.torch_engine.requests.pooling import Embedding
from enginewire.torch_engine.requests.reader import RequestReader, read_guide
from enginewire.torch_engine.requests.sequence import Request
from enginewire.torch_engine.scheduling.prefix_cache import CacheChange
from enginewire.torch_engine.step_thread import Command, StepThread, only_counts

if TYPE_CHECKING:
    from enginewire.torch_engine.guided.backends import GuidedBackends
    from enginewire.torch_engine.guided.matcher import CompiledGuide
    from enginewire.torch_engine.runner.statistics import BatchStatistics

JOIN_TIMEOUT = 10.0
"""Seconds to wait for the current step at cleanup; the thread is a daemon and ends with the process."""


class TorchEngine:
    """Continuous batching over one model. All methods belong to the event loop of `start`."""

    def __init__(
        self, options: TorchEngineOptions, progress: Callable[[str, float], None] | None = None
    ) -> None:
        """`progress` gets the phase (import, load, warm-up) and 0 to 1, on the step thread."""
        self._options = options
        self._progress = progress or (lambda phase, done: None)
        self._streams = StepStreams(ENGINE_ROLES[options.role])
        self._embedding_waits = EmbeddingWaits(self._streams)
        self._embedding: Embedding | None = None
        self._thread: StepThread | None = None
        self._counted = pb.Load()
        self._reader: RequestReader | None = None
        self._kv_events: KvEventLog | None = None
        self._tokenizer: Tokenizer | None = None
        self._grammars: GuidedBackends | None = None
        self._adapters: LoadedAdapters | None = None
        self._transfers: Transfers | None = None
        self._statistics: BatchStatistics | None = None
        self._is_closed = False
        self._num_submitted = 0

    async def start(self, worker_id: int) -> pb.EngineConfig:
        """Load and warm up the model; raises ModelLoadError. `worker_id` is not needed here."""
        if self._thread or self._is_closed:
            raise EngineDead("an engine starts once")
        loop = asyncio.get_running_loop()
        self._thread = StepThread(
            self._options,
            loop,
            self._embedding_waits,
            self._take_cache_changes,
            self._hand_over,
            self._progress,
        )
        self._thread.start()
        loaded = await self._thread.loaded
        self._embedding = loaded.embedding
        self._statistics = loaded.core.statistics
        limits = RequestLimits(
            vocab_size=loaded.config.vocab_size,
            context_length=loaded.context_length,
            kv_capacity=loaded.core.scheduler.pool.capacity,
            takes_any_length=loaded.core.scheduler.takes_any_length,
            prefix_caching=self._caches_prefixes,
            role=self._options.role,
            thinking=loaded.thinking,
            embedding_width=loaded.embedding_width,
        )
        if self._options.transfer and loaded.kv_layout:
            self._transfers = Transfers(self._options.transfer, loaded.kv_layout, self._streams)
        if self._caches_prefixes:
            self._kv_events = KvEventLog(loaded.core.scheduler.pool.block_size, loaded.medium)
        self._reader = RequestReader(limits, loaded.defaults, self._options.seed)
        self._tokenizer = loaded.tokenizer
        self._grammars = loaded.grammars
        if loaded.adapted is not None:
            self._adapters = LoadedAdapters(loaded.adapted, loaded.like, self._options.max_lora_rank)
        return engine_config(self._options, loaded, limits)

    def set_step_listener(self, listener: StepListener) -> None:
        """Register who receives every step's outputs."""
        self._streams.listener = listener

    async def prepare(self, request: pb.PreprocessedRequest) -> None:
        """Compile the request's grammar; raises the EngineError that `submit` could only deliver later."""
        guide = read_guide(request.sampling_options)
        if guide:
            await asyncio.shield(asyncio.wrap_future(self._compile(guide)))

    def check(self, request: pb.PreprocessedRequest, context: GenerateContext) -> Request:
        """Read a request, or raise an EngineError."""
        _, reader = self._open()
        if self.only_embeds:
            raise Unsupported("this engine only embeds")
        return reader.read(request, context, time.monotonic(), self._adapter(request.routing))

    def submit(self, request: pb.PreprocessedRequest, context: GenerateContext) -> None:
        """Queue a request, or raise an EngineError; it may first wait for its grammar or for KV."""
        accepted = self.check(request, context)
        compiled = self._compile(accepted.guide) if accepted.guide else None
        if self._transfers and accepted.hands_over:
            self._transfers.check_room(len(accepted.prompt_token_ids))
        # The last of all checks: a request that is refused leaves its hand-off to others.
        claims = self._transfers and is_handed_over(request, self._options.role)
        claimed = self._transfers.claim(request, accepted.adapter) if self._transfers and claims else None
        self._num_submitted += 1
        arrive(accepted, claimed, compiled, self._post)

    @property
    def embedding_size(self) -> int:
        """Numbers of a vector; 0 before the start, and for a model that cannot embed."""
        return self._embedding.size if self._embedding else 0

    @property
    def only_embeds(self) -> bool:
        """True for an encoder."""
        return self._embedding is not None and self._embedding.is_all

    async def embed(
        self, request: pb.PreprocessedEmbeddingRequest, context: GenerateContext
    ) -> pb.EmbeddingsEngineOutput:
        """Queue every input as a sequence of its own; wait for all. Cancelling the call frees them."""
        thread, reader = self._open()
        if self._embedding is None:
            raise Unsupported("this model cannot embed")
        pooling, adapter = self._embedding.pooling, self._adapter(context.routing)
        if request.HasField("dimensions"):
            pooling = replace(pooling, dimensions=request.dimensions)
        now = time.monotonic()
        inputs = [
            reader.read_input(each.token_ids, pooling, _context_of_input(context), now, adapter)
            for each in request.token_ids
        ]
        with self._embedding_waits.of(each.context for each in inputs) as waits:
            self._num_submitted += 1
            thread.post(lambda core: core.add_inputs(inputs))
            try:
                return _answer(inputs, await asyncio.gather(*waits))
            finally:
                if not all(wait.done() and not wait.cancelled() for wait in waits):
                    thread.post(lambda core: core.live.abort_each(each.context for each in inputs))

    async def generate(
        self, request: pb.PreprocessedRequest, context: GenerateContext
    ) -> AsyncIterator[Item]:
        """`submit` as a stream of its own. Closing it early frees the request."""
        await self.prepare(request)
        async with aclosing(self._streams.run(self, request, context)) as outputs:
            async for output in outputs:
                yield output

    async def abort(self, context: GenerateContext) -> None:
        """End a request within a step; its choices end as cancelled. Idempotent."""
        if self._thread:
            self._thread.post(lambda core: core.live.abort(context))

    async def drain(self) -> None:
        """Hand requests that have produced nothing yet back as Draining failures."""
        if self._thread:
            self._thread.post(lambda core: core.live.hand_back_waiting(Draining("the engine is draining")))

    async def cleanup(self) -> None:
        """Cancel what is live, end the step thread, forget the model."""
        self._is_closed = True
        if self._kv_events:
            self._kv_events.close()
        if self._grammars:
            await asyncio.to_thread(self._grammars.close)
        if self._transfers:
            await self._transfers.finish_reading()
        if self._thread:
            self._thread.stop()
            if await asyncio.to_thread(self._thread.join, JOIN_TIMEOUT):
                self._counted, self._thread = self._thread.snapshot.load, None
        if self._transfers:
            await self._transfers.close()
        self._reader = None

    async def kv_event_sources(self) -> Seq[pb.KvEventSource]:
        """This engine itself, when it caches prefixes."""
        return [pb.KvEventSource(dp_rank=0)] if self._caches_prefixes else []

    async def subscribe_kv_events(
        self, dp_rank: int, after_sequence: int | None
    ) -> AsyncGenerator[pb.SubscribeKvEventsResponse, None]:
        """What the prefix cache does; ends with the engine. Raises SlowConsumer."""
        if dp_rank != 0:
            raise InvalidRequest(f"dp_rank: no such rank, got {dp_rank}, allowed 0", field="dp_rank")
        async for message in self._events().subscribe(after_sequence):
            yield message

    async def reset_prefix_cache(self) -> int:
        """Drop the cached blocks that no request holds; returns how many those were."""
        self._events()
        if self._is_closed or self._thread is None:
            raise EngineDead("the engine is closed")
        return await self._thread.ask(lambda core: core.scheduler.prefix_cache.reset())

    async def load_adapter(self, adapter: AdapterSource) -> int:
        """Read an adapter and put it beside the model, between two steps; returns its rank."""
        if self._is_closed or self._thread is None:
            raise EngineDead("the engine is closed")
        if self._adapters is None:
            raise Unsupported("this engine serves no adapters")
        return await self._adapters.load(adapter, self._thread)

    async def unload_adapter(self, name: str) -> None:
        """Forget an adapter. Requests that are using it keep it until they end."""
        if self._adapters is not None:
            self._adapters.unload(name)

    async def setup_metrics(self, context: MetricsContext) -> MetricsBindings:
        """Add those of the batches, which only this engine knows."""
        if context.registry is None or self._thread is None or self._statistics is None:
            return MetricsBindings()
        # Without metrics nobody needs prometheus_client.
        from enginewire.torch_engine.frontend.metrics import register

        thread = self._thread
        register(context, lambda: thread.snapshot, self._statistics)
        return MetricsBindings(dp_ranks=(0,))

    def load(self) -> pb.Load:
        """The load after the last step. What was submitted since then counts as waiting."""
        if self._thread is None:
            return only_counts(self._counted)
        snapshot, load = self._thread.snapshot, pb.Load()
        load.CopyFrom(snapshot.load)
        load.waiting += max(self._num_submitted - snapshot.requests_added, 0)
        load.pending_transfers = self._transfers.num_pending if self._transfers else 0
        if self.only_embeds:
            for blocks in ("kv_blocks_used", "kv_blocks_total", "kv_blocks_cached"):
                load.ClearField(blocks)
        return load

    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer files of the model folder."""
        return self._tokenizer

    def stalled_for(self) -> float:
        """Seconds the current step is over its allowance; infinite once the engine has died."""
        return self._thread.stalled_for() if self._thread else 0.0

    def _adapter(self, routing: pb.RoutingHints) -> Adapter | None:
        """The adapter that a request names; raises ModelNotFound."""
        if not routing.lora_name:
            return None
        adapter = self._adapters.find(routing.lora_name) if self._adapters else None
        if adapter is None:
            raise ModelNotFound("routing.lora_name: no such adapter is loaded", field="routing.lora_name")
        return adapter

    def _open(self) -> tuple[StepThread, RequestReader]:
        if self._is_closed or (self._thread and self._thread.is_dead):
            raise EngineDead("the engine is closed")
        if self._reader is None or self._thread is None:
            raise NotStarted("the engine is still starting")
        return self._thread, self._reader

    @property
    def _caches_prefixes(self) -> bool:
        return self._options.enable_prefix_caching and not self.only_embeds

    def discard_handoff(self, request_id: str) -> None:
        """Free the unclaimed hand-off of a request that has ended."""
        if self._transfers:
            self._transfers.discard(request_id)

    def _hand_over(self, request: Request, payload: memoryview) -> None:
        assert self._transfers is not None, "only a prefill engine hands over"
        self._transfers.send(request, payload)

    def _events(self) -> KvEventLog:
        if not self._caches_prefixes:
            raise Unsupported("the prefix cache is switched off")
        if self._kv_events is None:
            raise NotStarted("the engine is still starting")
        return self._kv_events

    def _take_cache_changes(self, changes: Seq[CacheChange]) -> None:
        if self._kv_events:
            self._kv_events.append(changes)

    def _compile(self, guide: Guide) -> Future[CompiledGuide]:
        if self._grammars is None:
            field = f"sampling_options.guided_decoding.{guide.kind}"
            raise Unsupported(f"{field}: this engine has no grammars", field=field)
        return self._grammars.compile(guide)

    def _post(self, command: Command) -> None:
        assert self._thread is not None, "cleanup ends compilations and transfers before the thread"
        self._thread.post(command)


def _context_of_input(whole: GenerateContext) -> GenerateContext:
    return GenerateContext(whole.request_id, routing=whole.routing)


def _answer(inputs: Seq[Request], vectors: Seq[Seq[float]]) -> pb.EmbeddingsEngineOutput:
    """The answer to a request whose inputs are all embedded."""
    tokens = sum(len(each.prompt_token_ids) for each in inputs)
    return pb.EmbeddingsEngineOutput(
        embeddings=[pb.Embedding(values=vector) for vector in vectors],
        prompt_tokens=tokens,
        total_tokens=tokens,
    )
