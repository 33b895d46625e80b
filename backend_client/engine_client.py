"""The backend's connection to one engine: facts, load, tokenizer, requests.

Requests go over one multiplexed stream when the engine has it, else over a Generate call each; both give
an `EngineStream`. Knows nothing about text.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Final, Self

import grpc

from backend_client.engine_stream import EngineStream
from backend_client.failure import RequestFailed, failed, from_rpc_error
from backend_client.multiplexed import MultiplexedConnection
from enginewire import v1 as pb

CHANNEL_OPTIONS: Final = (
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.max_send_message_length", 64 << 20),
    # A wedged engine is noticed within seconds. Without ping_timeout it would take a minute.
    ("grpc.keepalive_time_ms", 2_000),
    ("grpc.keepalive_timeout_ms", 2_000),
    ("grpc.http2.ping_timeout_ms", 2_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # Reconnect soon: the engine is on this machine or near.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # gRPC would share connections between channels; a dead one shall not outlive its client.
    ("grpc.use_local_subchannel_pool", 1),
)
MAX_TOKENIZER_BYTES: Final = 256 << 20
POLL_SECONDS: Final = 0.05


class EngineClient:
    """One engine. Create and use it on one event loop."""

    def __init__(self, target: str, *, multiplexed: bool = True) -> None:
        """`target` is any gRPC name, such as unix:/run/engine.sock; `multiplexed=False` forces Generate."""
        self.target = target
        self._channel = grpc.aio.insecure_channel(target, options=CHANNEL_OPTIONS)
        self._engine = pb.EngineServiceStub(self._channel)
        self._discovery = pb.DiscoveryServiceStub(self._channel)
        self._wants_multiplexed = multiplexed
        self._connection: MultiplexedConnection | None = None
        self._calls: set[asyncio.Task[None]] = set()
        self._info: pb.GetEngineInfoResponse | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def wait_ready(self, timeout: float) -> pb.GetEngineInfoResponse:
        """The engine's facts once it accepts requests. Raises RequestFailed after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while True:
            try:
                load = await self.load(timeout=max(0.1, deadline - time.monotonic()))
                if load.state == pb.ENGINE_STATE_READY:
                    return await self.info()
                last = failed(
                    grpc.StatusCode.UNAVAILABLE,
                    pb.ERROR_REASON_NOT_STARTED,
                    f"{self.target}: {pb.EngineState.Name(load.state)}",
                    retryable=True,
                )
            except RequestFailed as failure:
                last = failure
                if not failure.retryable:
                    raise
            if time.monotonic() >= deadline:
                raise last
            await asyncio.sleep(POLL_SECONDS)

    async def info(self) -> pb.GetEngineInfoResponse:
        """Who the engine is. Refuses an engine whose contract revision does not fit ours."""
        if self._info is None:
            try:
                info = await self._discovery.GetEngineInfo(pb.GetEngineInfoRequest())
            except grpc.aio.AioRpcError as error:
                raise from_rpc_error(error) from error
            _check_revision(info)
            self._info = info
        return self._info

    async def load(self, timeout: float | None = None) -> pb.Load:
        """What the engine has to do right now."""
        try:
            return (await self._discovery.GetLoad(pb.GetLoadRequest(), timeout=timeout)).load
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from error

    async def tokenizer_files(self) -> dict[str, bytes]:
        """The tokenizer the engine offers, checked against its manifest."""
        manifest = pb.TokenizerManifest()
        files: dict[str, bytearray] = {}
        try:
            async for response in self._discovery.GetTokenizer(pb.GetTokenizerRequest()):
                if response.HasField("manifest"):
                    manifest = response.manifest
                    _check_size(manifest)
                else:
                    files.setdefault(response.chunk.name, bytearray()).extend(response.chunk.data)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from error
        return {file.name: _checked(file, files.get(file.name, b"")) for file in manifest.files}

    async def submit(
        self,
        request: pb.GenerateRequest,
        *,
        timeout: float | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> EngineStream:
        """Start a request; outputs and failures arrive through the stream. `timeout` in seconds."""
        request.client_revision = request.client_revision or pb.CONTRACT_REVISION
        info = await self.info()
        if self._wants_multiplexed and info.config.capabilities.multiplexed:
            return self._multiplexed().submit(request, timeout, metadata or {})
        return self._generate(request, timeout, metadata or {})

    async def abort(self, request_ids: list[str], reason: str) -> pb.AbortResponse:
        """End requests by id, whoever started them."""
        return await self._engine.Abort(pb.AbortRequest(request_ids=request_ids, reason=reason))

    async def close(self) -> None:
        """End every request and the connection."""
        if self._connection is not None:
            await self._connection.close()
        for task in list(self._calls):
            task.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)
        await self._channel.close()

    def _multiplexed(self) -> MultiplexedConnection:
        if self._connection is None or self._connection.is_dead:
            self._connection = MultiplexedConnection(self._engine.GenerateMultiplexed)
        return self._connection

    def _generate(
        self, request: pb.GenerateRequest, timeout: float | None, metadata: Mapping[str, str]
    ) -> EngineStream:
        call = self._engine.Generate(request, timeout=timeout, metadata=tuple(metadata.items()))
        stream = EngineStream(request.request_id, lambda reason: _cancel(call))
        task = asyncio.create_task(_pump(call, stream), name=f"generate {request.request_id}")
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)
        return stream


def _cancel(call: grpc.aio.UnaryStreamCall[pb.GenerateRequest, pb.GenerateResponse]) -> None:
    call.cancel()


async def _pump(
    call: grpc.aio.UnaryStreamCall[pb.GenerateRequest, pb.GenerateResponse], stream: EngineStream
) -> None:
    """Move a Generate call's messages into its stream."""
    try:
        async for response in call:
            if response.engine_lifetime_id:
                stream.accepted = pb.Accepted(
                    engine_lifetime_id=response.engine_lifetime_id, request_id=response.request_id
                )
            output = response.output
            # The same split as in a frame: an output that is only tokens travels as tokens.
            if _is_plain(output):
                stream.tokens(output.index, output.first_output_position, list(output.token_ids))
            else:
                stream.output(output)
            stream.wake()
        stream.end()
    except grpc.aio.AioRpcError as error:
        stream.end(from_rpc_error(error))
    except asyncio.CancelledError:
        stream.end(failed(grpc.StatusCode.CANCELLED, pb.ERROR_REASON_CANCELLED, "the call was cancelled"))
        raise
    finally:
        stream.wake()


PLAIN_FIELDS: Final = frozenset({"token_ids", "first_output_position", "index"})


def _is_plain(output: pb.LLMEngineOutput) -> bool:
    return all(field.name in PLAIN_FIELDS for field, _ in output.ListFields())


def _check_revision(info: pb.GetEngineInfoResponse) -> None:
    if info.minimum_client_revision <= pb.CONTRACT_REVISION <= info.maximum_client_revision:
        return
    raise failed(
        grpc.StatusCode.FAILED_PRECONDITION,
        pb.ERROR_REASON_REVISION_MISMATCH,
        f"contract revision {pb.CONTRACT_REVISION}, the engine needs "
        f"{info.minimum_client_revision}..{info.maximum_client_revision}",
    )


def _check_size(manifest: pb.TokenizerManifest) -> None:
    total = sum(file.size for file in manifest.files)
    if total > MAX_TOKENIZER_BYTES:
        raise failed(
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            pb.ERROR_REASON_TOO_LARGE,
            f"the engine's tokenizer has {total} bytes, allowed {MAX_TOKENIZER_BYTES}",
        )


def _checked(file: pb.TokenizerFile, data: bytes | bytearray) -> bytes:
    if len(data) != file.size or hashlib.sha256(data).hexdigest() != file.sha256:
        raise failed(
            grpc.StatusCode.INTERNAL,
            pb.ERROR_REASON_PROTOCOL_VIOLATION,
            f"the engine's tokenizer file {file.name} differs from its manifest",
        )
    return bytes(data)
