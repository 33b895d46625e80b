"""One stream per request out of a step engine's outputs, for callers without a step listener.

Lives on the event loop. Knows nothing about the engine.
"""

from __future__ import annotations

from asyncio import Queue
from collections.abc import AsyncIterator, Iterator

from engine_server.failures import EngineError
from engine_server.interface import GenerateContext, StepListener, StepOutputs
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

    def open(self, context: GenerateContext) -> None:
        """Begin to keep the outputs of `context`."""
        self._queues[context] = Queue()

    def close(self, context: GenerateContext) -> None:
        """Stop; later outputs of `context` go to the listener."""
        self._queues.pop(context, None)

    async def read(self, context: GenerateContext, choices: int) -> AsyncIterator[pb.LLMEngineOutput]:
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


def _items(outputs: StepOutputs) -> Iterator[tuple[GenerateContext, Item]]:
    columns = zip(outputs.contexts, outputs.indexes, outputs.positions, outputs.token_ids, strict=True)
    for context, index, position, token_id in columns:
        yield context, pb.LLMEngineOutput(token_ids=[token_id], first_output_position=position, index=index)
    yield from outputs.outputs
    yield from outputs.failures
