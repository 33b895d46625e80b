"""How gRPC servers are made, and what they log."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import pytest

from enginewire.grpc_server import LOGGER, bare_server, new_server
from enginewire.listening.binding import bind_tcp
from tests.repository import ROOT

PLACES = ("engine_server", "backend_client", "conformance", "proto")
# Large enough that some are on their way at any time.
FRAME = b"x" * 500_000
NUM_CONNECTIONS, NUM_CALLS = 10, 20


def test_servers_are_made_in_one_place() -> None:
    files = [path for place in PLACES for path in (ROOT / place / "enginewire").rglob("*.py")]
    makers = [path.name for path in files if "grpc.aio.server(" in path.read_text()]
    assert makers == ["grpc_server.py"]


async def test_a_second_server_cannot_share_a_port() -> None:
    first, second = new_server(1 << 20, 10), bare_server()
    port = first.add_insecure_port("127.0.0.1:0")
    with pytest.raises(RuntimeError, match="Failed to bind"):
        second.add_insecure_port(f"127.0.0.1:{port}")


async def endless(_: bytes, call: grpc.aio.ServicerContext[bytes, bytes]) -> AsyncIterator[bytes]:
    while True:
        yield FRAME


async def broken(_: bytes, call: grpc.aio.ServicerContext[bytes, bytes]) -> AsyncIterator[bytes]:
    yield FRAME
    raise ValueError("a mistake of ours")


@asynccontextmanager
async def serving() -> AsyncIterator[str]:
    server = bare_server()
    methods = {kind.__name__: grpc.unary_stream_rpc_method_handler(kind) for kind in (endless, broken)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("S", methods),))
    target = bind_tcp(server, "127.0.0.1", 0)
    await server.start()
    yield target
    await server.stop(None)


async def test_callers_that_hang_up_in_the_middle_of_an_answer_are_no_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving() as target:
        for _ in range(NUM_CONNECTIONS):
            async with grpc.aio.insecure_channel(
                target, options=[("grpc.use_local_subchannel_pool", 1)]
            ) as channel:
                calls = [channel.unary_stream("/S/endless")(b"") for _ in range(NUM_CALLS)]
                await asyncio.gather(*(call.read() for call in calls))
                await asyncio.sleep(0.01)
    assert caplog.text == ""


async def test_a_mistake_in_a_servicer_is_still_an_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving() as target, grpc.aio.insecure_channel(target) as channel:
        with pytest.raises(grpc.aio.AioRpcError, match="a mistake of ours"):
            async for _ in channel.unary_stream("/S/broken")(b""):
                pass
    assert "ValueError: a mistake of ours" in caplog.text


@pytest.mark.parametrize(
    ("message", "is_news"),
    [
        ('Failed "execute_batch": (<grpc._cython.cygrpc.SendMessageOperation object at 0x7f>,)', False),
        ("Failed grpc_call_start_batch: 8 with grpc_call_error value: 'TOO_MANY_OPERATIONS'", True),
    ],
)
async def test_only_operations_that_grpc_never_began_are_an_error(
    caplog: pytest.LogCaptureFixture, message: str, is_news: bool
) -> None:
    bare_server()
    try:
        raise grpc.aio.InternalError(message)
    except grpc.aio.InternalError:
        logging.getLogger(LOGGER).exception("raised in core")
    assert (message in caplog.text) == is_news
