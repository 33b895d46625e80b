"""How gRPC servers are made, and what they log."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import grpc
import h2.connection
import h2.events
import pytest

from enginewire.grpc_server import LOGGER, bare_server, new_server, started
from enginewire.listening.binding import bind_tcp, listen
from tests.patience import PATIENCE_SECONDS
from tests.repository import ROOT

PLACES = ("engine_server", "backend_client", "conformance", "proto")
# Large enough that some are on their way at any time.
FRAME = b"x" * 500_000
NUM_CONNECTIONS, NUM_CALLS = 10, 20
GRPC = "application/grpc"
# More than the 3,000 of which gRPC by itself takes no other.
NUM_FLOODS, CALLS_OF_A_FLOOD = 7, 450


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


class Connection:
    """One whose frames are made by hand, on a socket that blocks: the event loop stands still meanwhile."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(PATIENCE_SECONDS)
        self.socket.connect(str(path))
        self.state = h2.connection.H2Connection()
        self.state.initiate_connection()
        self.end = ""

    def begin_call(self, *, is_reset: bool = False) -> None:
        """A call of `echo` without a message that says more."""
        fields = {":method": "POST", ":scheme": "http", ":path": "/S/echo", ":authority": "x"}
        stream = self.state.get_next_available_stream_id()
        self.state.send_headers(stream, [*fields.items(), ("te", "trailers"), ("content-type", GRPC)])
        self.state.send_data(stream, bytes(5), end_stream=True)
        if is_reset:
            self.state.reset_stream(stream)

    def wait_read(self) -> None:
        """Return when the server has read all of it: gRPC answers a ping behind that by itself."""
        self.state.ping(b"have you")
        self.socket.sendall(self.state.data_to_send())
        while not any(isinstance(event, h2.events.PingAckReceived) for event in self.heard()):
            pass

    def heard(self) -> list[h2.events.Event]:
        """What has come. The end of its call is kept, whoever waited for what."""
        data = self.socket.recv(1 << 16)
        assert data, "the server has hung up"
        events = self.state.receive_data(data)
        # A server that is slow asks whether this side is still there.
        self.socket.sendall(self.state.data_to_send())
        for event in events:
            status = dict(getattr(event, "headers", None) or ()).get(b"grpc-status", b"").decode()
            self.end = self.end or status or "reset" * isinstance(event, h2.events.StreamReset)
        return events

    def status(self) -> str:
        """The gRPC status of its call, or how it ended without one."""
        while not self.end:
            self.heard()
        return self.end


async def echo(message: bytes, call: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
    return message


async def test_calls_that_nobody_has_taken_up_yet_cost_others_none_of_theirs(socket_folder: Path) -> None:
    server = new_server(1 << 20, 1024)
    methods = {"echo": grpc.unary_unary_rpc_method_handler(echo)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("S", methods),))
    async with AsyncExitStack() as stack:
        stack.enter_context(listen(server, socket_folder / "s", "", None))
        await server.start()
        stack.push_async_callback(server.stop, None)
        for _ in range(NUM_FLOODS):
            flood = Connection(socket_folder / "s")
            stack.enter_context(flood.socket)
            for _ in range(CALLS_OF_A_FLOOD):
                flood.begin_call(is_reset=True)
            flood.wait_read()
        neighbour = Connection(socket_folder / "s")
        stack.enter_context(neighbour.socket)
        neighbour.begin_call()
        neighbour.wait_read()
        # Nothing above has waited for the loop; from here on it takes up what has come.
        assert await asyncio.to_thread(neighbour.status) == "0"


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


async def test_who_is_cancelled_while_a_server_starts_leaves_nothing_half_started(
    caplog: pytest.LogCaptureFixture, socket_folder: Path
) -> None:
    server = bare_server()
    server.add_insecure_port(f"unix:{socket_folder}/s")

    async def serve() -> None:
        async with started(server):
            raise AssertionError("it was cancelled")

    serving = asyncio.create_task(serve())
    await asyncio.sleep(0)
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    # What gRPC could not do it would say by now, of a task of its own.
    gc.collect()
    await asyncio.sleep(0)
    assert caplog.records == []
    assert not (socket_folder / "s").exists()
