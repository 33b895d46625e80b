"""API keys at the gRPC faces of a backend: BackendService, its health, and the worker of SMG."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import grpc
import pytest
from smg_grpc_proto import vllm_engine_pb2_grpc as stubs
from smg_grpc_proto.generated import vllm_engine_pb2 as vllm

from enginewire import v1 as pb
from enginewire.access.listener_options import access_of
from enginewire.access.roles import Role, role_of
from enginewire.backend.config import ServeOptions
from enginewire.backend.engines.failure import DETAILS_KEY
from enginewire.backend.frontends.grpc_service import grpc_face
from enginewire.backend.frontends.smg.server import smg_face
from enginewire.backend.frontends.text_backend import TextBackend
from tests.backend.frontends.conftest import StartBackend
from tests.keys import ALL_KEYS, KEYS, UNKNOWN_KEY, bearing
from tests.patience import PATIENCE_SECONDS
from tests.server.serving import rest_of

OTHER = "canary-other-infer-6620a1"
NO_MESSAGE = b"\xff"
AUTH_CODES = {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED}
SERVED = {
    "/enginewire.v1.BackendService/": ("Generate", "Embed"),
    "/grpc.health.v1.Health/": ("Check", "Watch"),
    "/vllm.grpc.engine.VllmEngine/": (
        "Generate",
        "Embed",
        "Abort",
        "HealthCheck",
        "GetModelInfo",
        "GetServerInfo",
        "GetLoads",
        "GetTokenizer",
    ),
}
METHODS = [service + name for service, names in SERVED.items() for name in names]
READ, INFER, ADMIN = (bearing(KEYS[role]) for role in Role)


@asynccontextmanager
async def faces(backend: TextBackend, folder: Path) -> AsyncIterator[dict[str, grpc.aio.Channel]]:
    """Channels by service, to a Unix socket and to the port of SMG."""
    options = ServeOptions(uds=folder / "backend.sock", smg_port=0, api_key=(*ALL_KEYS, OTHER))
    access = access_of(options)
    async with AsyncExitStack() as stack:
        own = await stack.enter_async_context(grpc_face(backend, options, access))
        smg = await stack.enter_async_context(smg_face(backend, options, access))
        channels = [
            await stack.enter_async_context(grpc.aio.insecure_channel(address.removeprefix("grpc://")))
            for address in (own.address, smg.address)
        ]
        yield {service: channels[service.startswith("/vllm")] for service in SERVED}


async def ending_of(
    channel: grpc.aio.Channel, method: str, metadata: Sequence[tuple[str, str]]
) -> tuple[grpc.StatusCode, pb.Status]:
    """How a call ends that sends what no RPC can parse, and its details."""
    # Also for streams: what comes after a refusal would be an error of the client's own.
    call = channel.unary_unary(method)(NO_MESSAGE, metadata=metadata, timeout=PATIENCE_SECONDS)
    trailers = dict(await call.trailing_metadata())
    return await call.code(), pb.Status.FromString(trailers.get(DETAILS_KEY, b""))


async def test_a_method_is_called_with_its_role_and_with_none_below(
    text_backend: TextBackend, socket_folder: Path
) -> None:
    async with faces(text_backend, socket_folder) as channels:
        for method in METHODS:
            channel = channels[method[: method.rindex("/") + 1]]
            for metadata in ((), bearing(UNKNOWN_KEY)):
                code, details = await ending_of(channel, method, metadata)
                assert code is grpc.StatusCode.UNAUTHENTICATED, method
                detail = pb.ErrorDetail()
                assert details.details[0].Unpack(detail)
                assert detail.reason == pb.ERROR_REASON_AUTH
            for role in Role:
                code, _ = await ending_of(channel, method, bearing(KEYS[role]))
                denied = code is grpc.StatusCode.PERMISSION_DENIED
                assert denied is (role < role_of(method)), (method, role, code)
                assert code is not grpc.StatusCode.UNAUTHENTICATED


async def test_a_key_does_what_it_is_for(text_backend: TextBackend, socket_folder: Path) -> None:
    asked = pb.BackendServiceGenerateRequest(text="x")
    asked.request.stop_conditions.max_tokens = 3
    asked.request.stop_conditions.ignore_eos = True
    async with faces(text_backend, socket_folder) as channels:
        stub = pb.BackendServiceStub(channels["/enginewire.v1.BackendService/"])
        items = [response.annotated async for response in stub.Generate(asked, metadata=INFER)]
        assert sum(len(item.data.token_ids) for item in items) == 3


async def test_smg_ends_its_own_requests_and_an_admin_those_of_all(
    start_backend: StartBackend, socket_folder: Path
) -> None:
    backend, _ = await start_backend(mocker_itl_ms=5)
    asked = vllm.GenerateRequest(
        request_id="mine",
        tokenized=vllm.TokenizedInput(input_ids=list(b"abc")),
        sampling_params=vllm.SamplingParams(max_tokens=4000, ignore_eos=True),
        stream=True,
    )
    ends = vllm.AbortRequest(request_ids=["mine"])
    async with faces(backend, socket_folder) as channels:
        stub = stubs.VllmEngineStub(channels["/vllm.grpc.engine.VllmEngine/"])
        for owner in (INFER, ADMIN):
            call = stub.Generate(asked, metadata=INFER)
            await call.read()
            await stub.Abort(ends, metadata=bearing(OTHER))
            for _ in range(3):
                assert (await call.read()).chunk.token_ids
            await stub.Abort(ends, metadata=owner)
            # A status is known only behind all messages.
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                _ = [message async for message in rest_of(call)]
            assert caught.value.code() is grpc.StatusCode.CANCELLED
