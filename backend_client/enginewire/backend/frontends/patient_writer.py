"""Messages to one gRPC caller, until it has taken nothing for too long.

gRPC waits for ever, and with it the request in the engine. Knows nothing about what is sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final, Generic, TypeVar

import grpc

from enginewire import v1 as pb
from enginewire.backend.engines.failure import RequestFailed, failed

T = TypeVar("T")

DEFAULT_PATIENCE_SECONDS: Final = 30.0


class PatientWriter(Generic[T]):
    """Use `patient` to get one."""

    def __init__(
        self, call: grpc.aio.ServicerContext[Any, T], patience: float, limit: asyncio.Timeout
    ) -> None:
        self._call = call
        self._patience = patience
        self._limit = limit
        self._loop = asyncio.get_running_loop()
        self._waits_since: float | None = None
        self._next_look = self._loop.call_later(patience / 4, self._look)

    async def write(self, message: T) -> None:
        """Send a message."""
        # A timer for each message would cost a tenth of sending it.
        self._waits_since = self._loop.time()
        await self._call.write(message)
        self._waits_since = None

    def close(self) -> None:
        """Nothing follows."""
        self._next_look.cancel()

    def _look(self) -> None:
        now = self._loop.time()
        if self._waits_since is not None and now - self._waits_since > self._patience:
            self._limit.reschedule(now)
        else:
            self._next_look = self._loop.call_later(self._patience / 4, self._look)


@asynccontextmanager
async def patient(call: grpc.aio.ServicerContext[Any, T], patience: float) -> AsyncIterator[PatientWriter[T]]:
    """A writer inside the context. Raises RequestFailed when a message has waited for `patience` seconds."""
    try:
        async with asyncio.timeout(None) as limit:
            writer = PatientWriter(call, patience, limit)
            try:
                yield writer
            finally:
                writer.close()
    except TimeoutError as error:
        if limit.expired():
            raise slow_consumer(patience) from error
        raise


def slow_consumer(patience: float) -> RequestFailed:
    """The end of a caller who does not read."""
    return failed(
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        pb.ERROR_REASON_SLOW_CONSUMER,
        f"the caller took nothing for {patience:g} s",
    )
