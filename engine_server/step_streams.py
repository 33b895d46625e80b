"""One stream per request out of a step engine's outputs, for callers without a step listener.

Lives on the event loop. Knows nothing about the engine.
"""

from __future__ import annotations

from asyncio import Queue, create_task
from collections.abc import AsyncGenerator, AsyncIterator, Iterator

from engine_server.failures import EngineError
from engine_server.interface import GenerateContext, StepEngine, StepListener, StepOutputs
from enginewire import v1 as pb

Item = pb.LLMEngineOutput | EngineError


class StepStreams:
    """A step listener that keeps what belongs to its streams and hands on the rest."""

    def __init__(self) -> None:
        self.listener: StepListener | None = None
        self._queues: dict[GenerateContext, Queue[Item]] = {}

    def __call__(self, outputs: StepOutputs) -> None:
        """Receive one step."""
        if self._queues:
            outputs = self._keep(outputs)
        if self.listener and (outputs.contexts or outputs.outputs or outputs.failures):
            self.listener(outputs)

    async def run(
        self, engine: StepEngine, request: pb.PreprocessedRequest, context: GenerateContext
    ) -> AsyncGenerator[pb.LLMEngineOutput, None]:
        """`engine.submit` as a stream of its own. Closing it early frees the request."""
        self._queues[context] = Queue()
        watch = create_task(_abort_when_cancelled(engine, context))
        try:
            engine.submit(request, context)
            async for output in self._read(context, open_choices(request)):
                yield output
        finally:
            watch.cancel()
            # Later outputs of the context go to the listener.
            del self._queues[context]
            await engine.abort(context)

    async def _read(self, context: GenerateContext, choices: int) -> AsyncIterator[pb.LLMEngineOutput]:
        """Yield until `choices` terminals have passed; raise the failure if there is one."""
        queue = self._queues[context]
        while choices:
            item = await queue.get()
            if isinstance(item, EngineError):
                raise item
            choices -= item.finish_reason != pb.FINISH_REASON_UNSPECIFIED
            yield item

    def _keep(self, outputs: StepOutputs) -> StepOutputs:
        rest = StepOutputs(outputs.step)
        for context, item in _items(outputs):
            if context in self._queues:
                self._queues[context].put_nowait(item)
            elif isinstance(item, EngineError):
                rest.failures.append((context, item))
            else:
                rest.outputs.append((context, item))
        return rest


def open_choices(request: pb.PreprocessedRequest) -> int:
    """How many choices of a valid request still need a terminal output."""
    return max(1, request.sampling_options.n) - sum(choice.finished for choice in request.resume.choices)


async def _abort_when_cancelled(engine: StepEngine, context: GenerateContext) -> None:
    await context.wait_cancelled()
    await engine.abort(context)


def _items(outputs: StepOutputs) -> Iterator[tuple[GenerateContext, Item]]:
    columns = zip(outputs.contexts, outputs.indexes, outputs.positions, outputs.token_ids, strict=True)
    for context, index, position, token_id in columns:
        yield context, pb.LLMEngineOutput(token_ids=[token_id], first_output_position=position, index=index)
    yield from outputs.outputs
    yield from outputs.failures
