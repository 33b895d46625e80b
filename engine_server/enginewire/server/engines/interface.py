"""What an engine promises to the shell, and what the shell promises back.

Holds the `LLMEngine` and `StepEngine` protocols, what engines may add to them, the per-request
`GenerateContext` and the values that cross between engine and shell. Knows nothing about gRPC, torch or
any engine.

Lifecycle: construct → `start` → many concurrent requests → `drain` → `cleanup`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

from enginewire import v1 as pb
from enginewire.server.failures import EngineError


@dataclass(eq=False, slots=True)
class GenerateContext:
    """One accepted request as the engine sees it. Identity is the key: compare with `is`.

    `deadline` is on the `time.monotonic()` clock, in seconds; None means no deadline.
    `cancel_reason` is set once, before `LLMEngine.abort` is called. `running_since` is for the engine to set,
    from any thread, when it begins to compute the request: on the same clock. Metrics split latencies there.
    `first_token_at` is what `notify_first_token` has noted. `trace` is the W3C trace context, `traceparent`
    and perhaps `tracestate`, for engines that pass the request on; empty without one.
    """

    request_id: str
    deadline: float | None = None
    cancel_reason: str | None = None
    running_since: float | None = None
    first_token_at: float | None = None
    # Of a request to embed only: its message has no field for them. The adapter is in `lora_name`.
    routing: pb.RoutingHints = field(default_factory=pb.RoutingHints)
    trace: Mapping[str, str] = field(default_factory=dict)
    # Owned by the shell: where outputs of this request go. Engines pass it through unread.
    sink: object | None = None
    _cancelled: asyncio.Event = field(default_factory=asyncio.Event)

    def cancel(self, reason: str) -> None:
        """Ask the engine to stop; the first reason wins. Call on the event loop only."""
        if self.cancel_reason is None:
            self.cancel_reason = reason
            self._cancelled.set()

    def notify_first_token(self) -> None:
        """Say that the first token exists, when that is known before an output can carry it; from any thread.

        Metrics then count the time to the first token until here. The first call counts; none is needed.
        """
        if self.first_token_at is None:
            self.first_token_at = time.monotonic()

    @property
    def is_cancelled(self) -> bool:
        """True once `cancel` was called. A plain read: safe from any thread."""
        return self.cancel_reason is not None

    async def wait_cancelled(self) -> None:
        """Return when the request is cancelled."""
        await self._cancelled.wait()


@dataclass(slots=True)
class StepOutputs:
    """Everything one scheduler step produced, in one hand-over to the event loop.

    The first four lists are columns of equal length: row i says that choice `indexes[i]` of
    `contexts[i]` produced `token_ids[i]` as its output token number `positions[i]` (0-based).
    A row that needs more than a token id (a finish, logprobs, text) travels in `outputs` instead,
    never in both. `events` answer annotations of requests. Within a step they are delivered first, then the
    columns, then `outputs`, then `failures`.
    """

    step: int
    contexts: list[GenerateContext] = field(default_factory=list)
    indexes: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    outputs: list[tuple[GenerateContext, pb.LLMEngineOutput]] = field(default_factory=list)
    failures: list[tuple[GenerateContext, EngineError]] = field(default_factory=list)
    events: list[tuple[GenerateContext, pb.EngineEvent]] = field(default_factory=list)


StepListener = Callable[[StepOutputs], None]

Item = pb.LLMEngineOutput | pb.EngineEvent
"""What a request gets: outputs, and between them events, which answer its `annotations` by their keys.

An engine names the keys that it answers in `Capabilities.annotations`. The shell drops events that the
request does not ask for, so that an engine need not look, and those behind its last terminal output.
"""


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """The files a backend needs to turn this engine's tokens into text: name → content."""

    files: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class MetricsContext:
    """Where an engine may add metrics of its own.

    `registry` is a `prometheus_client.CollectorRegistry`, or None when the server exports nothing. It is
    collected on the event loop, where every other call happens. `model` is for the label `model_name`,
    `prefix` for names that vLLM has too. What the server exports by itself: docs/metrics.md.
    """

    model: str
    registry: object | None = None
    prefix: str = "vllm:"


@dataclass(frozen=True, slots=True)
class MetricsBindings:
    """Data-parallel ranks the engine reports metrics for; stable for its lifetime.

    None: those that its `EngineConfig` names.
    """

    dp_ranks: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class AdapterSource:
    """An adapter that the server found: `source` is `folder` relative to the operator's folder.

    Equal files have equal digests (hex), wherever they are.
    """

    name: str
    source: str
    folder: Path
    digest: str


@runtime_checkable
class LLMEngine(Protocol):
    """An engine that streams one async iterator per request. Enough for most adapters."""

    async def start(self, worker_id: int) -> pb.EngineConfig:
        """Load everything; on return `generate` must work. Raises on failure.

        `worker_id` is opaque, unique among workers and stable for this engine's lifetime.
        """
        ...

    def generate(self, request: pb.PreprocessedRequest, context: GenerateContext) -> AsyncIterator[Item]:
        """Yield outputs until every choice has had exactly one output with a finish_reason.

        `completion_usage` rides on the last terminal of the request only. An engine that sees
        `context.is_cancelled` ends with FINISH_REASON_CANCELLED. An `EngineError` raised before
        the first output rejects the request; one raised later fails it. Resources are freed in
        `finally`: closing the iterator is the only notice an engine is sure to get.
        """
        ...

    async def abort(self, context: GenerateContext) -> None:
        """Out-of-band notice that `context` was cancelled. Default: nothing."""
        ...

    async def drain(self) -> None:
        """Called once when a drain stops admission, while running requests go on.

        Hand requests that are still waiting back as `Draining` failures, so that their callers move
        on. Do not wait for running requests: the server does, and until `load` has no `pending_transfers`.
        """
        ...

    async def cleanup(self) -> None:
        """Release everything. Idempotent; safe after a failed or missing `start`."""
        ...

    async def kv_event_sources(self) -> Sequence[pb.KvEventSource]:
        """Where KV events come from, one per data-parallel rank. Stable. Default: empty."""
        ...

    async def setup_metrics(self, context: MetricsContext) -> MetricsBindings:
        """Bind engine metrics; called after `start`, may be called again. Default: no ranks."""
        ...

    def load(self) -> pb.Load:
        """A snapshot of requests and KV blocks. Cheap, never blocks on the engine."""
        ...

    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer files to offer through GetTokenizer, or None."""
        ...


@runtime_checkable
class StepEngine(LLMEngine, Protocol):
    """An engine that batches: requests go in one by one, outputs come out once per step.

    The shell prefers this interface: it costs one event-loop hand-over per step, not per token.
    """

    def set_step_listener(self, listener: StepListener) -> None:
        """Register the receiver of `StepOutputs`. It is always called on the event loop."""
        ...

    def submit(self, request: pb.PreprocessedRequest, context: GenerateContext) -> None:
        """Accept a validated request, or raise `EngineError` to reject it. Never blocks.

        After acceptance the engine delivers, through the listener, either one terminal output per
        choice or one failure: never both, never neither, whatever happens to the request.
        """
        ...

    def stalled_for(self) -> float:
        """Seconds the current step has been running beyond its expected time; 0.0 when healthy.

        Infinite once the engine has died: then the server ends.
        """
        ...


@runtime_checkable
class CheckingEngine(StepEngine, Protocol):
    """A step engine that can say beforehand what it would refuse.

    Where several callers share an engine, the shell keeps their requests until there is a slot. So that a
    wrong one is refused at once all the same, it asks before it accepts what has to wait.
    """

    def check(self, request: pb.PreprocessedRequest, context: GenerateContext) -> object:
        """Raise what `submit` would raise for the request; nothing else comes of it, whatever it returns."""
        ...


@runtime_checkable
class NamedEngine(Protocol):
    """What an engine adds that has a name and a version of its own, for GetEngineInfo. "" is none."""

    @property
    def engine_name(self) -> str:
        """Such as "my-engine". Known when `start` has returned, and constant from then on."""
        ...

    @property
    def engine_version(self) -> str:
        """Such as "1.2"."""
        ...


@runtime_checkable
class PrefixCacheEngine(Protocol):
    """What an engine adds that shows and resets its own prefix cache. Both may raise Unsupported."""

    def subscribe_kv_events(
        self, dp_rank: int, after_sequence: int | None
    ) -> AsyncGenerator[pb.SubscribeKvEventsResponse, None]:
        """Events after a number, or a snapshot; then all that happens until the engine is cleaned up.

        A subscriber that cannot keep up gets SlowConsumer; it never makes the engine wait.
        """
        ...

    async def reset_prefix_cache(self) -> int:
        """Drop the cached blocks that no request holds; returns how many those were."""
        ...


@runtime_checkable
class AdapterEngine(Protocol):
    """What an engine adds that serves adapters: requests name one in `routing.lora_name`.

    The shell keeps the names: it refuses requests for an adapter that is not loaded, never loads a name
    twice and never unloads one that a request of its own is using. One of these runs at a time.
    """

    async def load_adapter(self, adapter: AdapterSource) -> int:
        """Load an adapter, to be used from now on; returns its rank.

        Raises InvalidRequest (field `source`) for one that does not fit the model. Nothing is left then.
        """
        ...

    async def unload_adapter(self, name: str) -> None:
        """Forget an adapter that was loaded."""
        ...


@runtime_checkable
class PreparingEngine(StepEngine, Protocol):
    """A step engine that compiles grammars: what takes too long for `submit` is done before it."""

    async def prepare(self, request: pb.PreprocessedRequest) -> None:
        """Compile the guide of a validated request; raises an EngineError to reject it.

        Nothing is kept for the request itself: it may never be submitted. One that is submitted
        unprepared is served too, but its guide is then refused after acceptance.
        """
        ...


@runtime_checkable
class EmbeddingEngine(Protocol):
    """What an engine adds that embeds, and therefore advertises `embeddings`."""

    @property
    def embedding_size(self) -> int:
        """Numbers of a vector that nobody shortened. Known once the engine has started."""
        ...

    @property
    def only_embeds(self) -> bool:
        """True for an engine whose `submit` and `generate` raise Unsupported. Known like the size."""
        ...

    async def embed(
        self, request: pb.PreprocessedEmbeddingRequest, context: GenerateContext
    ) -> pb.EmbeddingsEngineOutput:
        """One vector per input of a validated request, in order. Raises EngineError.

        `context.routing` holds what `routing` holds of a request to generate: its priority, and the adapter
        to embed with, which an engine with adapters applies or refuses.
        The shell cancels the call when the request is aborted, its deadline passes or its caller has
        left: whatever it holds is freed in `finally`. A drain lets it finish, unless it still waits and
        the engine hands it back as Draining.
        """
        ...


@runtime_checkable
class HandingOverEngine(StepEngine, Protocol):
    """A step engine that may end a request with a hand-off, which then waits for a decode engine."""

    def discard_handoff(self, request_id: str) -> None:
        """Free the unclaimed hand-off of a request that has ended. Unknown ids are ignored."""
        ...


def discard_handoff(engine: StepEngine | None, request_id: str) -> None:
    """Free what a request has left, at an engine that hands over."""
    if isinstance(engine, HandingOverEngine):
        engine.discard_handoff(request_id)
