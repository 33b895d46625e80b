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
from typing import TYPE_CHECKING

from engine_server.failures import (
    Draining,
    EngineDead,
    EngineError,
    InvalidRequest,
    NotStarted,
    StepFailed,
    Unsupported,
)
from engine_server.interface import (
    GenerateContext,
    MetricsBindings,
    MetricsContext,
    StepListener,
    Tokenizer,
)
from engine_server.step_streams import StepStreams
from engine_server.torch_engine.advertised import engine_config, load_message
from engine_server.torch_engine.kv_events import KvEventLog
from engine_server.torch_engine.options import TorchEngineOptions
from engine_server.torch_engine.params import Guide
from engine_server.torch_engine.prefix_cache import CacheChange
from engine_server.torch_engine.request_reader import RequestLimits, RequestReader, read_guide
from engine_server.torch_engine.sequence import Request
from engine_server.torch_engine.step_thread import StepThread
from enginewire import v1 as pb

if TYPE_CHECKING:
    from engine_server.torch_engine.guided import CompiledGuide
    from engine_server.torch_engine.guided_compiler import GrammarCompiler

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
        self._streams = StepStreams()
        self._thread: StepThread | None = None
        self._reader: RequestReader | None = None
        self._kv_events: KvEventLog | None = None
        self._tokenizer: Tokenizer | None = None
        self._grammars: GrammarCompiler | None = None
        self._is_closed = False
        self._num_submitted = 0

    async def start(self, worker_id: int) -> pb.EngineConfig:
        """Load and warm up the model; raises ModelLoadError. `worker_id` is not needed here."""
        if self._thread or self._is_closed:
            raise EngineDead("an engine starts once")
        loop = asyncio.get_running_loop()
        self._thread = StepThread(
            self._options, loop, self._streams, self._take_cache_changes, self._progress
        )
        self._thread.start()
        loaded = await self._thread.loaded
        limits = RequestLimits(
            vocab_size=loaded.config.vocab_size,
            context_length=loaded.context_length,
            kv_capacity=loaded.core.scheduler.pool.capacity,
            prefix_caching=self._options.enable_prefix_caching,
        )
        if self._options.enable_prefix_caching:
            self._kv_events = KvEventLog(self._options.block_size, loaded.medium)
        self._reader = RequestReader(limits, loaded.defaults, self._options.seed)
        self._tokenizer = loaded.tokenizer
        self._grammars = loaded.grammars
        return engine_config(self._options, loaded, limits)

    def set_step_listener(self, listener: StepListener) -> None:
        """Register who receives every step's outputs."""
        self._streams.listener = listener

    async def prepare(self, request: pb.PreprocessedRequest) -> None:
        """Compile the request's grammar; raises the EngineError that `submit` could only deliver later."""
        guide = read_guide(request.sampling_options)
        if guide:
            await asyncio.shield(asyncio.wrap_future(self._compile(guide)))

    def submit(self, request: pb.PreprocessedRequest, context: GenerateContext) -> None:
        """Queue a request, or raise an EngineError. One whose grammar is not compiled yet waits for it."""
        if self._is_closed or (self._thread and self._thread.is_dead):
            raise EngineDead("the engine is closed")
        if self._reader is None or self._thread is None:
            raise NotStarted("the engine is still starting")
        accepted = self._reader.read(request, context, time.monotonic())
        if accepted.guide is None:
            self._num_submitted += 1
            self._thread.post(lambda core: core.add(accepted))
            return
        compiled = self._compile(accepted.guide)
        self._num_submitted += 1
        compiled.add_done_callback(lambda future: self._add_guided(accepted, future))

    async def generate(
        self, request: pb.PreprocessedRequest, context: GenerateContext
    ) -> AsyncIterator[pb.LLMEngineOutput]:
        """`submit` as a stream of its own. Closing it early frees the request."""
        await self.prepare(request)
        async with aclosing(self._streams.run(self, request, context)) as outputs:
            async for output in outputs:
                yield output

    async def abort(self, context: GenerateContext) -> None:
        """End a request within a step; its choices end as cancelled. Idempotent."""
        if self._thread:
            self._thread.post(lambda core: core.abort(context))

    async def drain(self) -> None:
        """Hand requests that have produced nothing yet back as Draining failures."""
        if self._thread:
            self._thread.post(lambda core: core.hand_back_waiting(Draining("the engine is draining")))

    async def cleanup(self) -> None:
        """Cancel what is live, end the step thread, forget the model."""
        self._is_closed = True
        if self._kv_events:
            self._kv_events.close()
        if self._grammars:
            await asyncio.to_thread(self._grammars.close)
        if self._thread:
            self._thread.stop()
            if await asyncio.to_thread(self._thread.join, JOIN_TIMEOUT):
                self._thread = None
        self._reader = None

    async def kv_event_sources(self) -> Seq[pb.KvEventSource]:
        """This engine itself, when it caches prefixes."""
        return [pb.KvEventSource(dp_rank=0)] if self._options.enable_prefix_caching else []

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

    async def setup_metrics(self, context: MetricsContext) -> MetricsBindings:
        """The engine has no metrics of its own beside `load`."""
        return MetricsBindings()

    def load(self) -> pb.Load:
        """The load after the last step."""
        return load_message(self._thread.snapshot, self._num_submitted) if self._thread else pb.Load()

    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer files of the model folder."""
        return self._tokenizer

    def stalled_for(self) -> float:
        """Seconds the current step is over its allowance; infinite once the engine has died."""
        return self._thread.stalled_for() if self._thread else 0.0

    def _events(self) -> KvEventLog:
        if not self._options.enable_prefix_caching:
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

    def _add_guided(self, request: Request, compiled: Future[CompiledGuide]) -> None:
        """Called on whichever thread the compilation ended on."""
        assert self._thread is not None, "cleanup ends compilations before the thread"
        thread = self._thread
        error = EngineDead("the engine is closed") if compiled.cancelled() else compiled.exception()
        if error is None:
            request.grammar = compiled.result()
            thread.post(lambda core: core.add(request))
            return
        failure = error if isinstance(error, EngineError) else StepFailed("the grammar was not compiled")
        thread.post(lambda core: core.reject(request, failure))
