"""One stream per request out of the engine's step outputs, for callers without a step listener.

Knows nothing about the engine; lives on the event loop.
"""

from __future__ import annotations

from asyncio import Queue
from collections.abc import AsyncIterator, Iterator

from engine_server.failures import EngineError
from engine_server.interface import GenerateContext, StepListener, StepOutputs
from enginewire import v1 as pb

Item = pb.LLMEngineOutput | EngineError


class Streams:
    """A step listener that keeps what belongs to its streams and hands on the rest."""

    def __init__(self) -> None:
        self.listener: StepListener | None = None
        self._queues: dict[GenerateContext, Queue[Item]] = {}

    def __call__(self, outputs: StepOutputs) -> None:
        """Receive one step."""
        if not self._queues:
            self._hand_on(outputs)
            return
        rest = StepOutputs(outputs.step)
        for context, item in _items(outputs):
            queue = self._queues.get(context)
            if queue:
                queue.put_nowait(item)
            else:
                _add(rest, context, item)
        self._hand_on(rest)

    def open(self, context: GenerateContext) -> None:
        """Begin to keep the outputs of `context`."""
        self._queues[context] = Queue()

    def close(self, context: GenerateContext) -> None:
        """Stop; later outputs of `context` are dropped with the rest."""
        self._queues.pop(context, None)

    async def read(self, context: GenerateContext, num_choices: int) -> AsyncIterator[pb.LLMEngineOutput]:
        """Yield until `num_choices` terminals have passed; raise the failure if there is one."""
        queue = self._queues[context]
        while num_choices:
            item = await queue.get()
            if isinstance(item, EngineError):
                raise item
            num_choices -= item.finish_reason != pb.FINISH_REASON_UNSPECIFIED
            yield item

    def _hand_on(self, outputs: StepOutputs) -> None:
        if self.listener and (outputs.contexts or outputs.outputs or outputs.failures):
            self.listener(outputs)


def _items(outputs: StepOutputs) -> Iterator[tuple[GenerateContext, Item]]:
    columns = zip(outputs.contexts, outputs.indexes, outputs.positions, outputs.token_ids, strict=True)
    for context, index, position, token_id in columns:
        yield context, pb.LLMEngineOutput(token_ids=[token_id], first_output_position=position, index=index)
    yield from outputs.outputs
    yield from outputs.failures


def _add(outputs: StepOutputs, context: GenerateContext, item: Item) -> None:
    if isinstance(item, EngineError):
        outputs.failures.append((context, item))
    else:
        outputs.outputs.append((context, item))
