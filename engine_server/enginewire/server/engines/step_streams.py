"""One stream per request out of a step engine's outputs, for callers without a step listener.

Lives on the event loop. Knows nothing about the engine.
"""

from __future__ import annotations

from asyncio import Queue, create_task
from collections.abc import AsyncGenerator, AsyncIterator, Iterator

from enginewire import v1 as pb
from enginewire.server.engines.interface import GenerateContext, Item, StepEngine, StepListener, StepOutputs
from enginewire.server.failures import EngineError


class StepStreams:
    """A step listener that keeps what belongs to its streams and hands on the rest."""

    def __init__(self, role: pb.EngineRole.ValueType = pb.ENGINE_ROLE_AGGREGATED) -> None:
        self.listener: StepListener | None = None
        self._role = role
        self._step = 0
        self._queues: dict[GenerateContext, Queue[Item | EngineError]] = {}

    def __call__(self, outputs: StepOutputs) -> None:
        """Receive one step."""
        self._step = outputs.step
        if self._queues:
            outputs = self._keep(outputs)
        has_news = outputs.contexts or outputs.outputs or outputs.failures or outputs.events
        if self.listener and has_news:
            self.listener(outputs)

    def deliver(self, context: GenerateContext, output: pb.LLMEngineOutput) -> None:
        """An output that no step has made."""
        self(StepOutputs(self._step, outputs=[(context, output)]))

    def fail(self, context: GenerateContext, failure: EngineError) -> None:
        """A failure that no step has made."""
        self(StepOutputs(self._step, failures=[(context, failure)]))

    async def run(
        self, engine: StepEngine, request: pb.PreprocessedRequest, context: GenerateContext
    ) -> AsyncGenerator[Item, None]:
        """`engine.submit` as a stream of its own. Closing it early frees the request."""
        self._queues[context] = Queue()
        watch = create_task(_abort_when_cancelled(engine, context))
        try:
            engine.submit(request, context)
            async for output in self._read(context, open_choices(request, self._role)):
                yield output
        finally:
            watch.cancel()
            # Later outputs of the context go to the listener.
            del self._queues[context]
            await engine.abort(context)

    async def _read(self, context: GenerateContext, choices: int) -> AsyncIterator[Item]:
        """Yield until `choices` terminals have passed; raise the failure if there is one."""
        queue = self._queues[context]
        while choices:
            item = await queue.get()
            if isinstance(item, EngineError):
                raise item
            if isinstance(item, pb.LLMEngineOutput):
                choices -= item.finish_reason != pb.FINISH_REASON_UNSPECIFIED
            yield item

    def _keep(self, outputs: StepOutputs) -> StepOutputs:
        rest = StepOutputs(outputs.step)
        for context, item in _items(outputs):
            if context in self._queues:
                self._queues[context].put_nowait(item)
            elif isinstance(item, EngineError):
                rest.failures.append((context, item))
            elif isinstance(item, pb.EngineEvent):
                rest.events.append((context, item))
            else:
                rest.outputs.append((context, item))
        return rest


def open_choices(request: pb.PreprocessedRequest, role: pb.EngineRole.ValueType) -> int:
    """How many choices of a valid request still need a terminal output from an engine of that role."""
    if role == pb.ENGINE_ROLE_PREFILL and not request.is_probe:
        return 1
    return max(1, request.sampling_options.n) - sum(choice.finished for choice in request.resume.choices)


async def _abort_when_cancelled(engine: StepEngine, context: GenerateContext) -> None:
    await context.wait_cancelled()
    await engine.abort(context)


def _items(outputs: StepOutputs) -> Iterator[tuple[GenerateContext, Item | EngineError]]:
    yield from outputs.events
    columns = zip(outputs.contexts, outputs.indexes, outputs.positions, outputs.token_ids, strict=True)
    for context, index, position, token_id in columns:
        yield context, pb.LLMEngineOutput(token_ids=[token_id], first_output_position=position, index=index)
    yield from outputs.outputs
    yield from outputs.failures
