"""The backend's connection to one engine: facts, load, tokenizer, requests.

Requests go over one multiplexed stream when the engine has it, else over a Generate call each; both give
an `EngineStream`. Knows nothing about text.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from types import TracebackType
from typing import Final, Self

import grpc

from enginewire import v1 as pb
from enginewire.backend.engines.connection.dialled import Dialled, OpenChannel
from enginewire.backend.engines.connection.messages import take_headers, take_message
from enginewire.backend.engines.connection.multiplexed import MultiplexedConnection
from enginewire.backend.engines.connection.offered_tokenizer import received
from enginewire.backend.engines.connection.revision import common_revision
from enginewire.backend.engines.connection.rpc import EngineRpc, GenerateCall, parsed
from enginewire.backend.engines.failure import RequestFailed, failed, from_rpc_error
from enginewire.backend.engines.stream import PATIENCE, EngineStream, Patience
from enginewire.calling.channel import MAX_MESSAGE_BYTES, open_channel
from enginewire.calling.trust import THIS_USER, Trust
from enginewire.files.trusted_paths import UntrustedPath

POLL_SECONDS: Final = 0.05
SHORTEST_WAIT_SECONDS: Final = 0.1
NO_NEWS_SECONDS: Final = 1.0
ABORT_SECONDS: Final = 2.0
INFO_SECONDS: Final = 5.0
# How a server, or what guards it, refuses what is an operator's.
KEPT_FROM_US: Final = (
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNAUTHENTICATED,
)
# How long past its deadline a request may wait for the engine's own word on it.
DEADLINE_SLACK_SECONDS: Final = 0.5


class EngineClient:
    """One engine. Create and use it on one event loop. Timeouts in seconds."""

    def __init__(
        self,
        target: str,
        *,
        multiplexed: bool = True,
        patience: Patience = PATIENCE,
        trust: Trust = THIS_USER,
        open_channel: OpenChannel = open_channel,
    ) -> None:
        """`target` is any gRPC name, such as unix:/run/engine.sock; `multiplexed=False` forces Generate.

        Nothing is sent to whoever `trust` does not believe. Simulations open channels of their own.
        """
        self.target = target
        self.trust = trust
        self._dialled = Dialled(target, trust, open_channel)
        self._wants_multiplexed = multiplexed
        self._patience = patience
        self._connection: MultiplexedConnection | None = None
        self._calls: set[asyncio.Task[None]] = set()
        self._aborts: set[asyncio.Task[None]] = set()
        self._info: pb.GetEngineInfoResponse | None = None
        self._is_closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def wait_ready(self, timeout: float) -> pb.GetEngineInfoResponse:
        """The engine's facts once it accepts requests. Raises RequestFailed after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        self._info = last = None
        while True:
            left = max(SHORTEST_WAIT_SECONDS, deadline - time.monotonic())
            try:
                load = await self.load(timeout=left)
                if load.state == pb.ENGINE_STATE_READY:
                    return await self.info(timeout=left)
                last = self._not_ready(load.state)
            except RequestFailed as failure:
                if failure.code is grpc.StatusCode.DEADLINE_EXCEEDED:
                    # What little time was left for another look says nothing new.
                    if last is not None and left < NO_NEWS_SECONDS:
                        raise last from failure
                    raise self._no_answer(timeout, last) from failure
                if not failure.retryable:
                    raise
                last = failure
            if time.monotonic() >= deadline:
                raise last
            await asyncio.sleep(POLL_SECONDS)

    async def info(self, timeout: float | None = None) -> pb.GetEngineInfoResponse:
        """Who the engine is, asked again after a connection was lost.

        Raises RequestFailed, also for an engine with which we have no contract revision in common.
        """
        if self._connection is not None and self._connection.is_dead:
            self._connection = self._info = None
        if self._info is None:
            self._prepare()
            info = await self._dialled.rpc.info(timeout)
            common_revision(info)
            self._ping_as_borne(info.config.limits)
            self._info = info
        return self._info

    @property
    def known_info(self) -> pb.GetEngineInfoResponse | None:
        """What it has said about itself, if it was asked."""
        return self._info

    def forget(self) -> None:
        """It is another life of the engine that answers now: ask again who it is."""
        self._info = None

    def _ping_as_borne(self, limits: pb.Limits) -> None:
        """Go on over a channel whose pings this life of the engine bears."""
        says = limits.HasField("min_keepalive_interval_ms")
        self._dialled.ping_as_borne(limits.min_keepalive_interval_ms if says else None)

    async def load(self, timeout: float | None = None) -> pb.Load:
        """What the engine has to do right now. Raises RequestFailed."""
        self._prepare()
        return await self._dialled.rpc.load(timeout)

    async def adapters(self, timeout: float | None = None) -> Sequence[pb.Adapter]:
        """Those that are loaded, none where nobody but an operator may ask. Raises RequestFailed."""
        if not (await self.info(timeout)).config.capabilities.lora:
            return []
        try:
            return (await self._dialled.rpc.adapters(timeout)).adapters
        except RequestFailed as failure:
            if failure.code not in KEPT_FROM_US:
                raise
            return []

    async def load_adapter(self, name: str, source: str, timeout: float) -> None:
        """From a folder below the engine's adapter folder. Raises RequestFailed."""
        self._prepare()
        await self._dialled.rpc.load_adapter(pb.LoadAdapterRequest(name=name, source=source), timeout)

    async def unload_adapter(self, name: str, timeout: float) -> None:
        """Raises RequestFailed, also while requests use it."""
        self._prepare()
        await self._dialled.rpc.unload_adapter(pb.UnloadAdapterRequest(name=name), timeout)

    async def watch_load(self, min_interval_ms: int) -> AsyncIterator[pb.Load]:
        """The load now and after changes, until the engine ends that. Raises RequestFailed."""
        while True:
            self._prepare()
            rpc = self._dialled.rpc
            async with contextlib.aclosing(rpc.loads(min_interval_ms)) as loads:
                async for load in loads:
                    yield load
                    if load.state == pb.ENGINE_STATE_READY and await self._has_moved(rpc):
                        break
                else:
                    return

    async def kv_events(
        self, dp_rank: int, after_sequence: int | None
    ) -> AsyncIterator[pb.SubscribeKvEventsResponse]:
        """What a rank caches, or what has changed since, and then changes. Raises RequestFailed."""
        self._prepare()
        request = pb.SubscribeKvEventsRequest(dp_rank=dp_rank, after_sequence=after_sequence)
        async with contextlib.aclosing(self._dialled.rpc.kv_events(request)) as responses:
            async for response in responses:
                yield response

    async def _has_moved(self, rpc: EngineRpc) -> bool:
        """The engine is up and can say what it bears, and that led to another channel."""
        with contextlib.suppress(RequestFailed):
            await self.info(INFO_SECONDS)
        return rpc is not self._dialled.rpc

    async def tokenizer_files(self) -> dict[str, bytes]:
        """The tokenizer the engine offers, checked against its manifest. Raises RequestFailed."""
        return await received(self._dialled.rpc.tokenizer())

    async def submit(
        self,
        request: pb.GenerateRequest,
        *,
        timeout: float | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> EngineStream:
        """Start a request; outputs and failures of the engine arrive through the stream.

        Raises RequestFailed for an engine that cannot be reached and a request that cannot be sent.
        """
        info = await self.info(timeout)
        request.client_revision, config = common_revision(info), info.config
        is_multiplexed = self._wants_multiplexed and config.capabilities.multiplexed
        submit = self._multiplexed(config.limits).submit if is_multiplexed else self._generate
        stream = submit(request, timeout, metadata or {})
        stream.listen(self._patience)
        if timeout is not None:
            stream.expire_after(timeout + DEADLINE_SLACK_SECONDS)
        return stream

    async def embed(
        self,
        request: pb.EmbedRequest,
        *,
        timeout: float | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> pb.EmbedResponse:
        """The engine's vectors, unchecked. Raises RequestFailed; cancelling it cancels the call."""
        info = await self.info(timeout)
        request.client_revision = common_revision(info)
        if not info.config.capabilities.embeddings:
            code, reason = grpc.StatusCode.UNIMPLEMENTED, pb.ERROR_REASON_UNSUPPORTED
            raise failed(code, reason, "this engine has no embeddings")
        try:
            longest = self._patience.first_token or None
            return await self._dialled.rpc.embed(
                request, longest if timeout is None else timeout, metadata or {}
            )
        except RequestFailed as failure:
            self._may_be_another_life(failure)
            raise

    def _may_be_another_life(self, failure: RequestFailed) -> None:
        """Ask who it is before the next request, if the engine was lost."""
        if failure.code is grpc.StatusCode.UNAVAILABLE or failure.reason == pb.ERROR_REASON_ENGINE_DEAD:
            self.forget()

    async def abort(self, request_ids: list[str], reason: str) -> pb.AbortResponse:
        """End requests by id, whoever started them. Raises RequestFailed."""
        return await self._dialled.rpc.abort(pb.AbortRequest(request_ids=request_ids, reason=reason))

    def abort_soon(self, request_id: str, reason: str) -> None:
        """As `abort`, for a caller that does not wait and needs no answer."""
        task = asyncio.create_task(self._abort_quietly(request_id, reason), name=f"abort {request_id}")
        self._aborts.add(task)
        task.add_done_callback(self._aborts.discard)

    async def close(self) -> None:
        """End every request and the connection. What comes later fails as if the engine were not there."""
        self._is_closed, self._info = True, None
        if self._aborts:
            await asyncio.wait(self._aborts)
        if self._connection is not None:
            await self._connection.close()
        for task in list(self._calls):
            task.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)
        await self._dialled.close()

    async def _abort_quietly(self, request_id: str, reason: str) -> None:
        with contextlib.suppress(RequestFailed, TimeoutError):
            async with asyncio.timeout(ABORT_SECONDS):
                await self.abort([request_id], reason)

    def _not_ready(self, state: pb.EngineState.ValueType) -> RequestFailed:
        name = pb.EngineState.Name(state) if state in pb.EngineState.values() else str(state)
        return failed(
            grpc.StatusCode.UNAVAILABLE,
            pb.ERROR_REASON_NOT_STARTED,
            f"{self.target}: {name}",
            retryable=True,
        )

    def _prepare(self) -> None:
        """Before whatever comes first, after a lost connection too: prompts may follow it."""
        if self._is_closed:
            code, reason = grpc.StatusCode.UNAVAILABLE, pb.ERROR_REASON_NOT_STARTED
            raise failed(code, reason, f"{self.target}: this engine has left", retryable=True)
        try:
            self._dialled.renew()
        except UntrustedPath as error:
            hint = "--socket-owner names another user who may own it"
            code, reason = grpc.StatusCode.PERMISSION_DENIED, pb.ERROR_REASON_AUTH
            raise failed(code, reason, f"{self.target}: {error}; {hint}") from error

    def _no_answer(self, seconds: float, before: RequestFailed | None) -> RequestFailed:
        return failed(
            grpc.StatusCode.DEADLINE_EXCEEDED,
            pb.ERROR_REASON_DEADLINE_EXCEEDED,
            f"{self.target}: no answer within {seconds:g} s" + (f"; before that: {before}" if before else ""),
        )

    def _multiplexed(self, limits: pb.Limits) -> MultiplexedConnection:
        if self._connection is None or self._connection.is_dead:
            has_limit = limits.HasField("max_request_bytes")
            limit = min(limits.max_request_bytes, MAX_MESSAGE_BYTES) if has_limit else MAX_MESSAGE_BYTES
            open_call, silence = self._dialled.rpc.multiplexed, self._patience.token
            self._connection = MultiplexedConnection(open_call, limit, silence)
        return self._connection

    def _generate(
        self, request: pb.GenerateRequest, timeout: float | None, metadata: Mapping[str, str]
    ) -> EngineStream:
        call = self._dialled.rpc.generate(request, timeout, metadata)
        stream = EngineStream(request.request_id, lambda reason: _cancel(call))
        task = asyncio.create_task(self._pump(call, stream), name=f"generate {request.request_id}")
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)
        return stream

    async def _pump(self, call: GenerateCall, stream: EngineStream) -> None:
        """Move a Generate call's messages into its stream."""
        failure: RequestFailed | None = _cancelled()
        has_answered = False
        try:
            async for data in call:
                has_answered = True
                take_message(parsed(pb.GenerateResponse, data), stream)
            failure = None
        except grpc.aio.AioRpcError as error:
            take_headers(error, stream)
            failure = from_rpc_error(error, is_accepted=has_answered or stream.accepted is not None)
            self._may_be_another_life(failure)
        except RequestFailed as error:
            failure = error
        finally:
            # Whatever it was, the consumer may not be left waiting.
            stream.end(None if failure is None else failure.failure)
            stream.wake()
            call.cancel()


def _cancel(call: GenerateCall) -> None:
    call.cancel()


def _cancelled() -> RequestFailed:
    return failed(grpc.StatusCode.CANCELLED, pb.ERROR_REASON_CANCELLED, "the call was cancelled")
