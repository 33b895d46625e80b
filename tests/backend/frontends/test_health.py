from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from enginewire import v1 as pb
from enginewire.backend.backend import Backend
from enginewire.backend.config import ServeOptions
from enginewire.backend.engines.connection.client import EngineClient
from enginewire.backend.engines.endpoints import Endpoints
from enginewire.backend.frontends.grpc_service import SERVICE, GrpcFace, grpc_face
from enginewire.backend.frontends.text_backend import TextBackend
from tests.backend.frontends.conftest import StartBackend
from tests.patience import PATIENCE_SECONDS
from tests.server.serving import Serving

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
Served = tuple[GrpcFace, health_pb2_grpc.HealthStub, list[Serving]]


@pytest.fixture
async def served(start_backend: StartBackend, socket_folder: Path) -> AsyncIterator[Served]:
    """A backend on two engines, a stub of its health, and the engines."""
    backend, first = await start_backend()
    _, second = await start_backend()
    options = ServeOptions(uds=socket_folder / "backend.sock")
    clients = [EngineClient(serving.server.target) for serving in (first, second)]
    async with Endpoints(clients) as engines:
        await engines.wait_ready(10)
        text = TextBackend(Backend(engines, backend.backend.vocabulary), backend.tokenizer)
        async with (
            grpc_face(text, options) as face,
            grpc.aio.insecure_channel(f"unix:{options.uds}") as channel,
        ):
            yield face, health_pb2_grpc.HealthStub(channel), [first, second]


async def drain(serving: Serving) -> None:
    async for _ in serving.engine.Drain(pb.DrainRequest()):
        pass


async def test_a_backend_is_ready_while_one_of_its_engines_is(served: Served) -> None:
    _, health, (first, second) = served
    watch = health.Watch(health_pb2.HealthCheckRequest(service=SERVICE))
    assert (await watch.read()).status == SERVING
    await drain(first)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await watch.read()
    watch = health.Watch(health_pb2.HealthCheckRequest(service=SERVICE))
    assert (await watch.read()).status == SERVING
    await drain(second)
    assert (await watch.read()).status == NOT_SERVING
    assert (await health.Check(health_pb2.HealthCheckRequest(service=SERVICE))).status == NOT_SERVING
    assert (await health.Check(health_pb2.HealthCheckRequest())).status == SERVING


async def test_a_service_that_is_not_ours_is_unknown(served: Served) -> None:
    _, health, _ = served
    request = health_pb2.HealthCheckRequest(service="enginewire.v1.EngineService")
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await health.Check(request)
    assert refused.value.code() is grpc.StatusCode.NOT_FOUND
    watch = health.Watch(request)
    assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


async def test_watchers_hear_of_the_end_and_do_not_hold_it_up(served: Served) -> None:
    face, health, _ = served
    watch = health.Watch(health_pb2.HealthCheckRequest(service=SERVICE))
    assert (await watch.read()).status == SERVING
    async with asyncio.timeout(PATIENCE_SECONDS):
        draining = asyncio.create_task(face.drain(60))
        assert (await watch.read()).status == NOT_SERVING
        assert await watch.read() == grpc.aio.EOF
        await draining


@pytest.mark.parametrize("method", ["Check", "Watch"])
async def test_bytes_that_are_no_request_are_an_invalid_argument(served: Served, method: str) -> None:
    face, _, _ = served
    async with grpc.aio.insecure_channel(face.address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await channel.unary_stream(f"/grpc.health.v1.Health/{method}")(b"\0").read()
    assert refusal.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert refusal.value.details() == "request: malformed protobuf"
