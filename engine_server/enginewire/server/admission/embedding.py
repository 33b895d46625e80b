"""One request to embed while the engine computes it: what may end it, and that it then really has ended.

Knows nothing about gRPC, about other requests or about a particular engine.
"""

from __future__ import annotations

import asyncio
from typing import Any

from enginewire import v1 as pb
from enginewire.server.engines.interface import EmbeddingEngine, GenerateContext
from enginewire.server.failures import Cancelled, DeadlineExceeded, EngineError


class EmbeddingWork:
    """A running `embed`. It is a `Sink` of which only `fail` is ever used: there are no tokens."""

    def __init__(
        self, engine: EmbeddingEngine, request: pb.PreprocessedEmbeddingRequest, context: GenerateContext
    ) -> None:
        self._context = context
        self._work = asyncio.ensure_future(engine.embed(request, context))
        self._failed: asyncio.Future[EngineError] = asyncio.get_running_loop().create_future()
        self._aborted = asyncio.create_task(context.wait_cancelled())

    async def result(self) -> pb.EmbeddingsEngineOutput:
        """The vectors. Raises EngineError, whoever ended the work; call `close` afterwards."""
        ends: set[asyncio.Future[Any]] = {self._work, self._failed, self._aborted}
        try:
            async with asyncio.timeout_at(self._context.deadline):
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            raise DeadlineExceeded("the deadline passed before the vectors were computed") from None
        if self._failed.done():
            raise self._failed.result()
        if self._aborted.done():
            raise Cancelled(f"aborted: {self._context.cancel_reason}")
        return self._work.result()

    async def close(self) -> None:
        """Cancel the engine's part and wait for its end."""
        for task in (self._work, self._aborted):
            task.cancel()
        await asyncio.gather(self._work, self._aborted, return_exceptions=True)

    def fail(self, failure: EngineError) -> None:
        """End it without the engine's help."""
        if not self._failed.done():
            self._failed.set_result(failure)

    def token(self, index: int, position: int, token_id: int) -> None:
        """Never called."""

    def output(self, output: pb.LLMEngineOutput) -> None:
        """Never called."""

    def engine_event(self, event: pb.EngineEvent) -> None:
        """Never called."""

    def finish(self) -> None:
        """Never called."""

    def is_slow(self, now: float) -> bool:
        """A caller that waits for one message cannot be slow."""
        return False
