"""One request to embed while the engine computes it: what may end it, and that it then really has ended.

Knows nothing about gRPC, about other requests or about a particular engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from enginewire import v1 as pb
from enginewire.access.meters import Need
from enginewire.server.engines.interface import EmbeddingEngine, GenerateContext
from enginewire.server.failures import Cancelled, DeadlineExceeded, EngineError


class EmbeddingWork:
    """A running `embed`. It is a `Sink` of which only `fail` is ever used: there are no tokens."""

    def __init__(
        self, engine: EmbeddingEngine, request: pb.PreprocessedEmbeddingRequest, context: GenerateContext
    ) -> None:
        """The engine hears of it with `start`."""
        num_tokens = sum(len(each.token_ids) for each in request.token_ids)
        self.need = Need(1, num_tokens, num_tokens)
        self._context = context
        self._may_start = asyncio.Event()
        self._work = asyncio.ensure_future(self._in_turn(engine, request))
        self._failed: asyncio.Future[EngineError] = asyncio.get_running_loop().create_future()
        self._aborted = asyncio.create_task(context.wait_cancelled())

    @property
    def routing(self) -> pb.RoutingHints:
        """Its priority, among others."""
        return self._context.routing

    @property
    def may_wait(self) -> bool:
        """It may."""
        return True

    def start(self) -> None:
        """There is a slot for it."""
        self._may_start.set()

    def check(self) -> None:
        """An engine says of an embedding what is wrong with it when it begins."""

    def cancelled(self) -> Iterable[pb.LLMEngineOutput]:
        """None: who cancels the context ends it."""
        return ()

    async def _in_turn(
        self, engine: EmbeddingEngine, request: pb.PreprocessedEmbeddingRequest
    ) -> pb.EmbeddingsEngineOutput:
        await self._may_start.wait()
        return await engine.embed(request, self._context)

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

    def cancel(self) -> None:
        """Nobody wants it."""
        for task in (self._work, self._aborted):
            task.cancel()

    async def close(self) -> None:
        """Cancel the engine's part and wait for its end."""
        self.cancel()
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
