"""What an engine in Python may begin with: everything that has a default.

`BaseEngine` leaves `start` and `generate` to write; an `answer.Answer` per request makes the outputs. Knows
nothing about gRPC or any particular engine.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import cached_property

from enginewire import v1 as pb
from enginewire.server.engines.answer import Answer
from enginewire.server.engines.interface import (
    GenerateContext,
    Item,
    MetricsBindings,
    MetricsContext,
    Tokenizer,
)
from enginewire.server.engines.slots import Slots
from enginewire.server.engines.step_streams import open_choices


class BaseEngine(ABC):
    """An `LLMEngine` that needs two methods. Fill in `config` in `start`, and return it there."""

    engine_name = ""
    """Shown by GetEngineInfo with the version; "" for what `--engine` was given."""
    engine_version = ""

    def __init__(self, options: object = None) -> None:  # noqa: B027  # a default, which need not be called
        """`options` are the server's, a `ServerOptions`."""

    @cached_property
    def config(self) -> pb.EngineConfig:
        """What the engine is: at first one that does prompt and answer, and samples as the model says."""
        config = pb.EngineConfig(role=pb.ENGINE_ROLE_AGGREGATED)
        sampling = config.capabilities.default_sampling
        sampling.temperature = sampling.top_p = sampling.repetition_penalty = 1.0
        return config

    @cached_property
    def _slots(self) -> Slots:
        return Slots()

    @abstractmethod
    async def start(self, worker_id: int) -> pb.EngineConfig:
        """Load everything; on return `generate` must work. Raises on failure."""

    @abstractmethod
    def generate(self, request: pb.PreprocessedRequest, context: GenerateContext) -> AsyncIterator[Item]:
        """An async generator of outputs and events, until every choice had its terminal output."""

    @asynccontextmanager
    async def answering(
        self, request: pb.PreprocessedRequest, context: GenerateContext
    ) -> AsyncIterator[Answer]:
        """The answer to a request, once it is its turn: `max_num_seqs` of the config run, the others wait."""
        config = self.config
        self._slots.num_slots = config.max_num_seqs if config.HasField("max_num_seqs") else None
        async with self._slots.take(open_choices(request, config.role)):
            yield Answer(request, context, config)

    async def abort(self, context: GenerateContext) -> None:  # noqa: B027  # a default, not to be written
        """Nothing: an `Answer` sees that its request is cancelled."""

    async def drain(self) -> None:  # noqa: B027  # a default
        """Nothing: running requests finish."""

    async def cleanup(self) -> None:  # noqa: B027  # a default
        """Nothing to release."""

    async def kv_event_sources(self) -> Sequence[pb.KvEventSource]:
        """None."""
        return []

    async def setup_metrics(self, context: MetricsContext) -> MetricsBindings:
        """No metrics of its own."""
        return MetricsBindings()

    def load(self) -> pb.Load:
        """Those that are being answered, and those that wait for it."""
        return pb.Load(
            running=self._slots.num_running,
            waiting=self._slots.num_waiting,
            kv_blocks_total=self.config.total_kv_blocks * max(self.config.data_parallel_size, 1),
        )

    def tokenizer(self) -> Tokenizer | None:
        """None: whoever asks has one."""
        return None
