"""The vectors of inputs on their way from the steps to whoever awaits them.

Lives on the event loop. Knows nothing about torch, models or protobuf.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence as Seq
from contextlib import contextmanager

from enginewire.server.engines.interface import GenerateContext, StepListener
from enginewire.server.failures import Cancelled, EngineError
from enginewire.torch_engine.work.outbox import CoreOutputs


class EmbeddingWaits:
    """A step listener that keeps what belongs to inputs, and hands on the rest.

    An input has a context of its own and ends in one of three ways: a vector, a failure, or the terminal
    output of what was cancelled.
    """

    def __init__(self, listener: StepListener) -> None:
        self._listener = listener
        self._waits: dict[GenerateContext, asyncio.Future[list[float]]] = {}

    def __call__(self, outputs: CoreOutputs) -> None:
        """Receive one step."""
        if self._waits:
            for context, vector in outputs.vectors:
                self._end(context, vector)
            outputs.outputs = [item for item in outputs.outputs if not self._cancelled(item[0])]
            outputs.failures = [item for item in outputs.failures if not self._end(*item)]
        self._listener(outputs)

    @contextmanager
    def of(self, contexts: Iterable[GenerateContext]) -> Iterator[Seq[asyncio.Future[list[float]]]]:
        """One future per input, in order. What has not ended by the end of the block is nobody's."""
        loop = asyncio.get_running_loop()
        waits = {context: loop.create_future() for context in contexts}
        self._waits.update(waits)
        try:
            yield list(waits.values())
        finally:
            for wait in waits.values():
                wait.cancel()

    def _cancelled(self, context: GenerateContext) -> bool:
        return self._end(context, Cancelled("the input was cancelled"))

    def _end(self, context: GenerateContext, end: list[float] | EngineError) -> bool:
        """End the wait for an input; False for a context that is none."""
        wait = self._waits.pop(context, None)
        if wait is None:
            return False
        if not wait.done():
            wait.set_exception(end) if isinstance(end, EngineError) else wait.set_result(end)
        return True
