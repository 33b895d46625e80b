"""grpc.health.v1 agrees with Load.state in every state, and its watchers see every change."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from grpc_health.v1 import health_pb2

from enginewire import v1 as pb
from tests.server.serving import ENGINE_SERVICE, until_true

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
DISCOVERY_SERVICE = "enginewire.v1.DiscoveryService"


async def bring_into(serving, state: str) -> None:
    """Take a server that has not started into a state."""
    if state != "STARTING":
        await serving.server.start()
    if state == "DRAINING":
        async for _ in serving.engine.Drain(pb.DrainRequest()):
            pass
    elif state == "STOPPED":
        await serving.engine.Cleanup(pb.CleanupRequest())
    elif state == "DEAD":
        await serving.server.lifecycle.declare_dead(1.0)


@pytest.mark.parametrize(
    ("state", "is_alive", "is_ready"),
    [
        ("STARTING", True, False),
        ("READY", True, True),
        ("DRAINING", True, False),
        ("STOPPED", False, False),
        ("DEAD", False, False),
    ],
)
async def test_health_agrees_with_the_state(engine_server, state, is_alive, is_ready):
    serving = await engine_server(is_started=False)
    await bring_into(serving, state)
    assert (await serving.load()).state == pb.EngineState.Value(f"ENGINE_STATE_{state}")
    expected = {"": is_alive, ENGINE_SERVICE: is_ready, DISCOVERY_SERVICE: is_ready}
    assert {name: await serving.is_serving(name) for name in expected} == expected


async def test_an_unknown_service_is_not_found_by_check_and_unknown_to_watch(engine_server):
    serving = await engine_server()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await serving.is_serving("no.Service")
    assert caught.value.code() == grpc.StatusCode.NOT_FOUND
    call = serving.health.Watch(health_pb2.HealthCheckRequest(service="no.Service"))
    assert (await call.read()).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
    call.cancel()


async def test_a_watcher_sees_the_status_at_once_and_every_change_and_ends_with_the_server(engine_server):
    serving = await engine_server(is_started=False)
    seen: dict[str, list[int]] = {"": [], ENGINE_SERVICE: []}

    async def watch(name: str) -> None:
        async for answer in serving.health.Watch(health_pb2.HealthCheckRequest(service=name)):
            seen[name].append(answer.status)

    watchers = [asyncio.create_task(watch(name)) for name in seen]
    await until_true(lambda: all(seen.values()))
    await serving.server.start()
    await until_true(lambda: len(seen[ENGINE_SERVICE]) == 2)
    await serving.engine.Cleanup(pb.CleanupRequest())
    await asyncio.gather(*watchers)
    assert seen == {"": [SERVING, NOT_SERVING], ENGINE_SERVICE: [NOT_SERVING, SERVING, NOT_SERVING]}
