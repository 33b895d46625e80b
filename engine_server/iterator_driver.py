"""Runs an `LLMEngine` that streams per request as if it were a `StepEngine`.

One task per request reads the engine's iterator; everything that arrived in one turn of the event loop
leaves in one `StepOutputs`. Knows nothing about gRPC.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from engine_server.failures import DeadlineExceeded, EngineError, StepFailed
from engine_server.interface import (
    GenerateContext,
    LLMEngine,
    MetricsBindings,
    MetricsContext,
    StepListener,
    StepOutputs,
    Tokenizer,
)
from engine_server.status import as_failure
from enginewire import v1 as pb


class IteratorDriver:
    """A StepEngine around an LLMEngine."""

    def __init__(self, engine: LLMEngine) -> None:
        self._engine = engine
        self._listener: StepListener | None = None
        self._pending: StepOutputs | None = None
        self._step = 0
        self._tasks: dict[GenerateContext, asyncio.Task[None]] = {}

    async def start(self, worker_id: int) -> pb.EngineConfig:
        """Start the engine."""
        return await self._engine.start(worker_id)

    def set_step_listener(self, listener: StepListener) -> None:
        """Register the receiver of outputs."""
        self._listener = listener

    def submit(self, request: pb.PreprocessedRequest, context: GenerateContext) -> None:
        """Start reading the engine's iterator for this request."""
        task = asyncio.create_task(self._run(request, context), name=f"generate {context.request_id}")
        self._tasks[context] = task
        task.add_done_callback(lambda _: self._tasks.pop(context, None))

    def generate(
        self, request: pb.PreprocessedRequest, context: GenerateContext
    ) -> AsyncIterator[pb.LLMEngineOutput]:
        """The engine's own iterator."""
        return self._engine.generate(request, context)

    async def abort(self, context: GenerateContext) -> None:
        """Tell the engine; its iterator ends with CANCELLED."""
        await self._engine.abort(context)

    async def drain(self) -> None:
        """Drain the engine's own work."""
        await self._engine.drain()

    async def cleanup(self) -> None:
        """Stop every iterator, then release the engine."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._engine.cleanup()

    async def kv_event_sources(self) -> Sequence[pb.KvEventSource]:
        """The engine's sources."""
        return await self._engine.kv_event_sources()

    async def setup_metrics(self, context: MetricsContext) -> MetricsBindings:
        """The engine's metrics."""
        return await self._engine.setup_metrics(context)

    def load(self) -> pb.Load:
        """The engine's load."""
        return self._engine.load()

    def tokenizer(self) -> Tokenizer | None:
        """The engine's tokenizer."""
        return self._engine.tokenizer()

    def stalled_for(self) -> float:
        """An engine without steps has no step to be stuck in."""
        return 0.0

    async def _run(self, request: pb.PreprocessedRequest, context: GenerateContext) -> None:
        try:
            async with asyncio.timeout_at(_loop_time(context.deadline)):
                await self._forward(request, context)
        except TimeoutError:
            self._outputs().failures.append((context, DeadlineExceeded("the deadline passed")))
        except Exception as error:  # noqa: BLE001  # an engine's bug ends its request, not the server
            self._outputs().failures.append((context, as_failure(error)))

    async def _forward(self, request: pb.PreprocessedRequest, context: GenerateContext) -> None:
        open_choices = max(1, request.sampling_options.n)
        outputs = self._engine.generate(request, context)
        async for output in outputs:
            self._outputs().outputs.append((context, output))
            open_choices -= output.finish_reason != pb.FINISH_REASON_UNSPECIFIED
            if not open_choices:
                break
        await _close(outputs)
        if open_choices:
            failure: EngineError = StepFailed("the engine's stream ended without a terminal output")
            self._outputs().failures.append((context, failure))

    def _outputs(self) -> StepOutputs:
        """What this turn of the loop has gathered; delivered when the turn is over."""
        if self._pending is None:
            self._step += 1
            self._pending = StepOutputs(self._step)
            asyncio.get_running_loop().call_soon(self._deliver)
        return self._pending

    def _deliver(self) -> None:
        outputs, self._pending = self._pending, None
        assert outputs is not None, "scheduled only with something to deliver"
        assert self._listener is not None, "requests are submitted only after the listener was set"
        self._listener(outputs)


def _loop_time(deadline: float | None) -> float | None:
    # The default event loop's clock is time.monotonic(), and uvloop's has the same origin and rate.
    return deadline


async def _close(outputs: AsyncIterator[pb.LLMEngineOutput]) -> None:
    aclose = getattr(outputs, "aclose", None)
    if aclose is not None:
        await aclose()
