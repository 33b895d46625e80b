"""Runs an `LLMEngine` that streams per request as if it were a `StepEngine`.

One task per request reads the engine's iterator; everything that arrived in one turn of the event loop
leaves in one `StepOutputs`. Knows nothing about gRPC.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterable, AsyncIterator, Iterator, Sequence

from enginewire import v1 as pb
from enginewire.server.engines.answer import ended_before, usage
from enginewire.server.engines.calls import answer_of
from enginewire.server.engines.held_loop import HeldLoop
from enginewire.server.engines.interface import (
    EmbeddingEngine,
    GenerateContext,
    Item,
    LLMEngine,
    MetricsBindings,
    MetricsContext,
    NamedEngine,
    StepListener,
    StepOutputs,
    Tokenizer,
)
from enginewire.server.failures import DeadlineExceeded, EngineError, EngineMistake, Unsupported
from enginewire.server.status import as_failure

# An engine that heeds an abort has ended by then; any other has its iterator closed.
CANCEL_GRACE_SECONDS = 0.5


class Progress:
    """What the choices of one request have produced."""

    __slots__ = ("open_choices", "positions", "prompt_tokens")

    def __init__(self, request: pb.PreprocessedRequest) -> None:
        self.prompt_tokens = len(request.token_ids)
        self.open_choices = set(range(max(1, request.sampling_options.n)))
        self.positions = dict.fromkeys(self.open_choices, 0)
        for choice in request.resume.choices:
            self.positions[choice.index] = len(choice.generated_token_ids)
            if choice.finished:
                self.open_choices.discard(choice.index)

    def take(self, output: pb.LLMEngineOutput) -> None:
        """Count an output. Raises EngineMistake for one that the contract does not allow."""
        if not isinstance(output, pb.LLMEngineOutput):
            got = type(output).__name__
            raise EngineMistake(
                f"generate must yield LLMEngineOutput, got {got}: yield what answer.token(token_id) returns"
            )
        if output.index not in self.open_choices:
            raise EngineMistake(f"an output of choice {output.index}, which has ended or was not asked for")
        if output.first_output_position != (expected := self.positions[output.index]):
            got = f"first_output_position {output.first_output_position}"
            raise EngineMistake(
                f"{got} of choice {output.index}, expected {expected}: it counts tokens from 0"
            )
        if not output.token_ids and not output.finish_reason:
            raise EngineMistake("an output without token_ids, which only one with a finish_reason may be")
        self.positions[output.index] += len(output.token_ids)
        if output.finish_reason:
            self.open_choices.remove(output.index)

    def cancel(self) -> Iterator[pb.LLMEngineOutput]:
        """The terminals that are missing; the last one has the usage."""
        for index in sorted(self.open_choices):
            self.open_choices.remove(index)
            yield pb.LLMEngineOutput(
                index=index,
                first_output_position=self.positions[index],
                finish_reason=pb.FINISH_REASON_CANCELLED,
                completion_usage=None if self.open_choices else self._usage(),
            )

    def _usage(self) -> pb.CompletionUsage:
        return usage(self.prompt_tokens, sum(self.positions.values()))


class IteratorDriver:
    """A StepEngine around an LLMEngine."""

    def __init__(self, engine: LLMEngine) -> None:
        self._engine = engine
        self._config = pb.EngineConfig()
        self._listener: StepListener | None = None
        self._pending: StepOutputs | None = None
        self._step = 0
        self._tasks: dict[GenerateContext, asyncio.Task[None]] = {}
        self._held_loop = HeldLoop()

    async def start(self, worker_id: int) -> pb.EngineConfig:
        """Start the engine."""
        self._config = await answer_of("start", lambda: self._engine.start(worker_id))
        return self._config

    def set_step_listener(self, listener: StepListener) -> None:
        """Register the receiver of outputs."""
        self._listener = listener

    def submit(self, request: pb.PreprocessedRequest, context: GenerateContext) -> None:
        """Start reading the engine's iterator for this request."""
        progress = Progress(request)
        running = self._run(request, context, progress)
        task = asyncio.create_task(running, name=f"generate {context.request_id}")
        self._tasks[context] = task
        task.add_done_callback(lambda _: self._forget(context, progress))

    def generate(self, request: pb.PreprocessedRequest, context: GenerateContext) -> AsyncIterator[Item]:
        """The engine's own iterator."""
        return self._engine.generate(request, context)

    @property
    def engine_name(self) -> str:
        """The engine's; "" for one without."""
        return self._engine.engine_name if isinstance(self._engine, NamedEngine) else ""

    @property
    def engine_version(self) -> str:
        """The engine's; "" for one without."""
        return self._engine.engine_version if isinstance(self._engine, NamedEngine) else ""

    @property
    def embedding_size(self) -> int:
        """The engine's; 0 for one that does not embed."""
        return self._engine.embedding_size if isinstance(self._engine, EmbeddingEngine) else 0

    @property
    def only_embeds(self) -> bool:
        """The engine's."""
        return isinstance(self._engine, EmbeddingEngine) and self._engine.only_embeds

    async def embed(
        self, request: pb.PreprocessedEmbeddingRequest, context: GenerateContext
    ) -> pb.EmbeddingsEngineOutput:
        """The engine's own vectors."""
        if not isinstance(self._engine, EmbeddingEngine):
            raise Unsupported("this engine has no embeddings")
        return await self._engine.embed(request, context)

    async def abort(self, context: GenerateContext) -> None:
        """Tell the engine, and close its iterator if that does not end soon, whatever the engine does."""
        task = self._tasks.get(context)
        if task is not None:
            asyncio.get_running_loop().call_later(CANCEL_GRACE_SECONDS, task.cancel)
        await answer_of("abort", lambda: self._engine.abort(context))

    async def drain(self) -> None:
        """Drain the engine's own work."""
        await answer_of("drain", self._engine.drain)

    async def cleanup(self) -> None:
        """Stop every iterator, then release the engine."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await answer_of("cleanup", self._engine.cleanup)

    async def kv_event_sources(self) -> Sequence[pb.KvEventSource]:
        """The engine's sources."""
        return await answer_of("kv_event_sources", self._engine.kv_event_sources)

    async def setup_metrics(self, context: MetricsContext) -> MetricsBindings:
        """The engine's metrics."""
        return await answer_of("setup_metrics", lambda: self._engine.setup_metrics(context))

    def load(self) -> pb.Load:
        """The engine's load."""
        return self._engine.load()

    def tokenizer(self) -> Tokenizer | None:
        """The engine's tokenizer."""
        return self._engine.tokenizer()

    def stalled_for(self) -> float:
        """An engine without steps has no step to be stuck in."""
        return 0.0

    def _forget(self, context: GenerateContext, progress: Progress) -> None:
        task = self._tasks.pop(context)
        # Here and not in the task: one that is cancelled before its first step does nothing at all.
        if task.cancelled():
            self._outputs().outputs.extend((context, output) for output in progress.cancel())

    async def _run(
        self, request: pb.PreprocessedRequest, context: GenerateContext, progress: Progress
    ) -> None:
        try:
            async with asyncio.timeout_at(context.deadline):
                left = self._left_of(request, context, progress)
                if progress.open_choices:
                    await self._forward(_iterator(self._engine.generate(left, context)), context, progress)
        except TimeoutError:
            self._fail(context, DeadlineExceeded("the deadline passed"))
        except Exception as error:  # noqa: BLE001  # an engine's bug ends its request, not the server
            self._fail(context, as_failure(error))

    def _left_of(
        self, request: pb.PreprocessedRequest, context: GenerateContext, progress: Progress
    ) -> pb.PreprocessedRequest:
        """The request without the choices that are over before they begin: they get their terminals here."""
        ended = ended_before(request, self._config)
        if not ended:
            return request
        left, over = pb.PreprocessedRequest(), {output.index for output in ended}
        left.CopyFrom(request)
        for choice in left.resume.choices:
            choice.finished |= choice.index in over
        for output in ended:
            progress.take(output)
            self._outputs().outputs.append((context, output))
        return left

    async def _forward(
        self, outputs: AsyncIterator[Item], context: GenerateContext, progress: Progress
    ) -> None:
        try:
            async for output in self._held_loop.watched(outputs):
                if isinstance(output, pb.EngineEvent):
                    self._event(context, output)
                    continue
                progress.take(output)
                self._outputs().outputs.append((context, output))
                if not progress.open_choices:
                    return
        finally:
            await _close(outputs)
        choices = ", ".join(map(str, sorted(progress.open_choices)))
        raise EngineMistake(
            f"the stream ended, but choice {choices} had no output with a finish_reason: "
            "answer.token sets one at the last token, answer.finish for a reason of your own"
        )

    def _event(self, context: GenerateContext, event: pb.EngineEvent) -> None:
        if self._pending is not None and self._pending.outputs:
            self._deliver()  # of one step events come first, and these outputs were there before
        self._outputs().events.append((context, event))

    def _fail(self, context: GenerateContext, failure: EngineError) -> None:
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
        if outputs is None:  # delivered before an event
            return
        assert self._listener is not None, "requests are submitted only after the listener was set"
        self._listener(outputs)


def _iterator(outputs: AsyncIterator[Item]) -> AsyncIterator[Item]:
    """What `generate` returned. Raises EngineMistake for what cannot be iterated over."""
    if not isinstance(outputs, AsyncIterable):
        if inspect.iscoroutine(outputs):
            outputs.close()  # or Python warns that nobody awaited it
        got = type(outputs).__name__
        raise EngineMistake(
            f"generate must return an async iterator, as `async def` with `yield` does, got {got}"
        )
    return outputs


async def _close(outputs: AsyncIterator[Item]) -> None:
    aclose = getattr(outputs, "aclose", None)
    if aclose is not None:
        await aclose()
