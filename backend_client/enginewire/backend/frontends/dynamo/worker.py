"""The requests of one worker: from Dynamo's frontend to the engine and back, and none left at the end.

Knows nothing about how the worker is found, and imports nothing of Dynamo.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
from collections.abc import AsyncIterator, Mapping
from typing import Final, Protocol

import grpc

from enginewire import v1 as pb
from enginewire.backend.engines.connection.client import EngineClient
from enginewire.backend.engines.endpoint import BUSY_SECONDS
from enginewire.backend.engines.failure import Failure, RequestFailed
from enginewire.backend.engines.stream import EngineStream, life_of, some
from enginewire.backend.frontends.dynamo.answer import CANCELLED, Answer, Json
from enginewire.backend.frontends.dynamo.failures import ExceptionName, exception_name
from enginewire.backend.frontends.dynamo.request import to_engine
from enginewire.tracing.trace_context import passed_on

UNFIT: Final = re.compile(r"[^A-Za-z0-9._:-]")
MAX_ID_CHARS: Final = 100
HANDED_BACK: Final = Failure(
    grpc.StatusCode.UNAVAILABLE.value[0],
    pb.ERROR_REASON_DRAINING,
    "the worker ends before the request has",
    retryable=True,
)


class Context(Protocol):
    """What Dynamo tells of a request beside it."""

    def id(self) -> str: ...  # noqa: D102

    def trace_headers(self) -> Mapping[str, str] | None: ...  # noqa: D102

    def async_killed_or_stopped(self) -> asyncio.Future[bool]: ...  # noqa: D102


class Worker:
    """Serves the requests of one engine. Create and use it on one event loop."""

    def __init__(self, client: EngineClient, exceptions: Mapping[ExceptionName, type[Exception]]) -> None:
        """`exceptions` are Dynamo's."""
        self._client = client
        self._exceptions = exceptions
        self._live: set[EngineStream] = set()
        self._num_live = 0
        self._changed = asyncio.Event()

    async def generate(self, asked: object, context: Context) -> AsyncIterator[Json]:
        """Outputs until every choice has ended. Raises Dynamo's exceptions.

        The request ends in the engine when the frontend stops it, or takes no more.
        """
        self._num_live += 1
        stopped = asyncio.ensure_future(context.async_killed_or_stopped())
        request, answer = pb.PreprocessedRequest(), None
        try:
            request = to_engine(asked)
            async with self._submitted(request, context, stopped) as stream:
                answer = Answer(request.token_ids, max(1, request.sampling_options.n))
                while not answer.is_finished:
                    chunks = await stream.read()
                    if not chunks and stopped.done():
                        yield CANCELLED
                        return
                    for chunk in some(chunks):
                        if chunk.is_cancelled and not stopped.done():
                            await self._check_cancelled(stream)
                        yield answer.output(chunk)
        except RequestFailed as error:
            # A grammar would begin anew in the middle of its text.
            is_bound = (
                answer is not None
                and answer.has_begun
                and request.sampling_options.HasField("guided_decoding")
            )
            name = exception_name(error.failure, can_go_on=not is_bound)
            raise self._exceptions[name](error.failure.message) from error
        finally:
            stopped.cancel()
            self._num_live -= 1
            self._changed.set()

    @contextlib.asynccontextmanager
    async def _submitted(
        self, request: pb.PreprocessedRequest, context: Context, stopped: asyncio.Future[bool]
    ) -> AsyncIterator[EngineStream]:
        """The request at the engine, for as long as somebody wants it. Raises RequestFailed."""
        generate = pb.GenerateRequest(request_id=request_id(context.id()), request=request)
        metadata = passed_on(context.trace_headers() or {})
        stream = await self._client.submit(generate, metadata=metadata)

        def leave(_: object) -> None:
            stream.abort("the caller left")
            stream.wake()

        stopped.add_done_callback(leave)
        self._live.add(stream)
        try:
            yield stream
        finally:
            self._live.discard(stream)
            stream.abort("the caller left or has everything")

    async def _check_cancelled(self, stream: EngineStream) -> None:
        """Raise RequestFailed when the engine has cancelled a choice because it drains or is over."""
        try:
            load = await self._client.load(BUSY_SECONDS)
        except RequestFailed as error:
            raise RequestFailed(HANDED_BACK) from error
        if load.state != pb.ENGINE_STATE_READY or load.engine_lifetime_id != life_of(stream):
            raise RequestFailed(HANDED_BACK)

    async def drain(self, timeout: float) -> None:
        """Wait for running requests; what still runs after `timeout` seconds goes on at another worker."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._idle()
        for stream in list(self._live):
            stream.abort("the worker ends", HANDED_BACK)
            stream.wake()
        await self._idle()

    async def _idle(self) -> None:
        while self._num_live:
            self._changed.clear()
            await self._changed.wait()


def request_id(name: str) -> str:
    """One that no other request has: a request that comes back after a failure has the name of the first."""
    return f"{UNFIT.sub('-', name)[:MAX_ID_CHARS]}-{secrets.token_hex(4)}"
