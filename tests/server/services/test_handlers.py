"""Whatever bytes arrive and whatever a handler raises: a status of the contract, never UNKNOWN."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import NamedTuple

import grpc
import pytest
from google.protobuf.message import Message

from enginewire import v1 as pb
from enginewire.server.failures import InvalidRequest
from enginewire.server.server import DISCOVERY_SERVICE, ENGINE_SERVICE
from enginewire.server.services.handlers import handlers
from enginewire.server.services.health import SERVICE as HEALTH
from tests.server.serving import Serving, ask, detail_of, submit

METHODS = [
    (f"/{service.full_name}/{method.name}", method)
    for service in (ENGINE_SERVICE, DISCOVERY_SERVICE, HEALTH)
    for method in service.methods
]
# A field longer than its message, a bad tag, a group without an end, a string that is not UTF-8.
MALFORMED = [b"\x0a\x7f", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", b"\x0b", b"\x0a\x02\xc3\x28"]


async def call_raw(
    serving: Serving, path: str, data: bytes, timeout: float = 5.0
) -> grpc.aio.AioRpcError | None:
    """Send one message as it is; returns the failure, if any."""
    # Sent with the call: a message of its own may find the call already refused, which is INTERNAL then.
    call = serving.channel.unary_stream(path)(data, timeout=timeout)
    try:
        async for _ in call:
            pass
    except grpc.aio.AioRpcError as error:
        return error
    return None


@pytest.mark.parametrize("path", [path for path, method in METHODS if method.input_type.fields])
async def test_malformed_bytes_are_an_invalid_argument_with_details(engine_server, path):
    serving = await engine_server()
    errors = [await call_raw(serving, path, data) for data in MALFORMED[:3]]
    for error in errors:
        assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert detail_of(error).reason == pb.ERROR_REASON_INVALID_REQUEST
    assert await serving.is_serving()


async def test_a_string_that_is_not_utf_8_is_an_invalid_argument(engine_server):
    serving = await engine_server()
    for path in ("/enginewire.v1.EngineService/Generate", "/enginewire.v1.EngineService/Abort"):
        assert (
            detail_of(await call_raw(serving, path, MALFORMED[3])).reason == pb.ERROR_REASON_INVALID_REQUEST
        )


@pytest.mark.parametrize(("path", "method"), METHODS)
async def test_random_bytes_never_end_in_unknown_or_internal(engine_server, path, method):
    serving = await engine_server()
    dice = random.Random(path)
    seed = ask(max_tokens=3).SerializeToString()
    # What happens to be a request to watch would go on for ever.
    timeout = 0.02 if "Watch" in method.name else 5.0
    for i in range(60):
        data = dice.randbytes(dice.randrange(1, 64)) if i % 2 else mutated(seed, dice)
        error = await call_raw(serving, path, data, timeout)
        assert error is None or error.code() not in (grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL)
    assert await serving.is_serving("") or method.name == "Cleanup"


def mutated(data: bytes, dice: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(dice.randrange(1, 4)):
        changed[dice.randrange(len(changed))] = dice.randrange(256)
    return bytes(changed[: dice.randrange(1, len(changed) + 1)])


BROKEN = [
    ("EngineService/Abort", pb.AbortRequest(request_ids=["a"])),
    ("EngineService/Generate", ask()),
    ("EngineService/GenerateMultiplexed", submit(1, ask())),
    ("DiscoveryService/GetLoad", pb.GetLoadRequest()),
    ("DiscoveryService/WatchLoad", pb.WatchLoadRequest()),
]


@pytest.mark.parametrize(("path", "message"), BROKEN)
async def test_an_unexpected_exception_is_internal_with_an_opaque_id(
    engine_server, monkeypatch, caplog, path, message
):
    def fail(*args: object) -> None:
        raise RuntimeError("a secret")

    serving = await engine_server()
    with monkeypatch.context() as patch:
        patch.setattr(serving.server.lifecycle.requests, "submit", fail)
        patch.setattr(serving.server.lifecycle.requests, "abort_ids", fail)
        patch.setattr(serving.server.lifecycle, "load", fail)
        error = await call_raw(serving, f"/enginewire.v1.{path}", message.SerializeToString())
    assert error.code() == grpc.StatusCode.INTERNAL
    assert detail_of(error).metadata["error_id"] in caplog.text
    assert "secret" not in error.details()


@pytest.mark.parametrize("path", ["/enginewire.v1.EngineService/Nothing", "/no.Service/Generate", "/"])
async def test_unknown_methods_and_services_are_unimplemented(engine_server, path):
    serving = await engine_server()
    assert (await call_raw(serving, path, b"")).code() == grpc.StatusCode.UNIMPLEMENTED


async def test_a_message_over_the_limit_is_refused_and_the_connection_lives(engine_server):
    serving = await engine_server(max_message_bytes=4096, mocker_itl_ms=10.0)
    neighbour = asyncio.create_task(serving.generate(ask("neighbour", max_tokens=20)))
    error = await call_raw(serving, "/enginewire.v1.EngineService/Generate", bytes(4097))
    assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert (await neighbour).usage() == (5, 20)


async def test_metadata_over_the_limit_is_refused_and_the_server_lives(engine_server):
    serving = await engine_server()
    call = serving.engine.Generate(ask(), metadata=(("x-large", "x" * 20_000),))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert (await serving.generate(ask())).usage() == (5, 8)


class LeftCall:
    """A call whose caller has left, which gRPC has not noticed yet: whatever is sent fails."""

    async def send_initial_metadata(self, metadata: object) -> None:
        raise grpc.aio.InternalError("Failed execute_batch")

    async def abort(self, code: grpc.StatusCode, message: str, trailers: object) -> None:
        raise grpc.aio.InternalError("Failed grpc_call_start_batch")


class Accepts:
    """Accepts a request, or refuses one without an id."""

    async def Generate(  # the name in the contract
        self, request: pb.GenerateRequest, call: LeftCall
    ) -> AsyncIterator[Message]:
        if not request.request_id:
            raise InvalidRequest("request_id: must be set")
        await call.send_initial_metadata(())
        yield pb.GenerateResponse()


class Details(NamedTuple):
    """What gRPC asks for a handler with."""

    method: str = "/enginewire.v1.EngineService/Generate"


@pytest.mark.parametrize("request_id", ["accepted", ""])
async def test_a_caller_that_leaves_before_it_is_answered_is_no_failure_of_ours(caplog, request_id):
    handler = handlers(ENGINE_SERVICE, Accepts()).service(Details())
    answer = handler.unary_stream(pb.GenerateRequest(request_id=request_id).SerializeToString(), LeftCall())
    with pytest.raises(asyncio.CancelledError):
        await anext(answer)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
