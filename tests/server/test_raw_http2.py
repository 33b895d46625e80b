"""HTTP/2 as no gRPC library sends it: the server answers or ends the stream, and serves everybody else."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import grpc
import h2.config
import h2.connection
import h2.events
import h2.exceptions
import pytest

from enginewire import v1 as pb
from tests.long import long, long_but
from tests.patience import PATIENCE_SECONDS
from tests.server.serving import Serving, ask, until_true

GENERATE = "/enginewire.v1.EngineService/Generate"
GET_LOAD = "/enginewire.v1.DiscoveryService/GetLoad"
# More than a call of these tests has that is sent again and again.
ROOM_BYTES = 1024
# More than all calls that a connection has room for.
WRITTEN_AHEAD_BYTES = 1 << 20
OK = str(grpc.StatusCode.OK.value[0])
# gRPC's own answer to what breaks the rules of gRPC.
INTERNAL, UNIMPLEMENTED = (str(grpc.StatusCode[name].value[0]) for name in ("INTERNAL", "UNIMPLEMENTED"))
TOO_MUCH = str(grpc.StatusCode.RESOURCE_EXHAUSTED.value[0])


def framed(message: bytes, flag: int = 0) -> bytes:
    """A message as gRPC has it in a stream."""
    return bytes([flag]) + struct.pack(">I", len(message)) + message


@dataclass
class Http2:
    """A connection whose frames are made by hand."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    state: h2.connection.H2Connection

    @classmethod
    async def open(cls, path: Path) -> Http2:
        """Preface and settings are sent."""
        reader, writer = await asyncio.open_unix_connection(path)
        # While gRPC cannot send frames of its own it reads none: who waits for that has to read.
        writer.transport.set_write_buffer_limits(WRITTEN_AHEAD_BYTES)
        config = h2.config.H2Configuration(validate_outbound_headers=False, normalize_outbound_headers=False)
        state = h2.connection.H2Connection(config)
        state.initiate_connection()
        return cls(reader, writer, state)

    def call(self, path: str, messages: Sequence[bytes] = (), **headers: str) -> int:
        """Begin a call that is all said at once; its stream."""
        stream = self.state.get_next_available_stream_id()
        fields = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "x", "te": "trailers"}
        more = {name.replace("_", "-"): value for name, value in headers.items()}
        self.state.send_headers(stream, [*{**fields, "content-type": "application/grpc", **more}.items()])
        for message in messages:
            self.state.send_data(stream, message)
        self.state.end_stream(stream)
        return stream

    async def flush(self) -> None:
        """Send what was said. Reading tells whether the server has hung up."""
        self.writer.write(self.state.data_to_send())
        with contextlib.suppress(ConnectionError):
            await self.writer.drain()

    async def has_room(self) -> bool:
        """Whether the server allows one more call, in the end; False when it has said goodbye."""
        while self.state.outbound_flow_control_window < ROOM_BYTES and not self.writer.is_closing():
            await self.flush()
            events = await self.heard()
            if not events or any(isinstance(event, h2.events.ConnectionTerminated) for event in events):
                return False
        return not self.writer.is_closing()

    async def heard(self) -> list[h2.events.Event]:
        """What has come; nothing when the server has hung up."""
        # h2 takes nothing behind a goodbye, which allows it.
        with contextlib.suppress(ConnectionError, h2.exceptions.ProtocolError):
            async with asyncio.timeout(PATIENCE_SECONDS):
                while data := await self.reader.read(1 << 16):
                    if events := self.state.receive_data(data):
                        return events
        return []

    async def status_of(self, stream: int) -> str:
        """The gRPC status, or how the stream or the connection ended without one."""
        await self.flush()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while events := await self.heard():
                for event in events:
                    if isinstance(event, h2.events.DataReceived):
                        self.state.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                    if getattr(event, "stream_id", None) != stream:
                        continue
                    found = {
                        key.decode(): value.decode() for key, value in getattr(event, "headers", None) or ()
                    }
                    if "grpc-status" in found:
                        return found["grpc-status"]
                    if isinstance(event, h2.events.StreamReset):
                        return "reset"
                await self.flush()
        return "closed"

    async def close(self) -> None:
        """Hang up."""
        self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()


async def healthy(serving: Serving) -> None:
    """Somebody else gets all of an answer, as soon as calls are taken up.

    While more than a thousand wait for that, gRPC turns some away at random: cancelled, without a detail.
    """
    async with asyncio.timeout(PATIENCE_SECONDS):
        while await was_turned_away(serving):  # noqa: ASYNC110  # there is no event to await
            await asyncio.sleep(0.01)
    assert (await serving.generate(ask("neighbour"))).usage() == (5, 8)


async def was_turned_away(serving: Serving) -> bool:
    """Whether the server never saw a call. It sees calls in their order: behind one it saw none waits."""
    call = serving.discovery.GetLoad(pb.GetLoadRequest())
    return await call.code() is grpc.StatusCode.CANCELLED


GOOD = framed(ask(max_tokens=3).SerializeToString())
# gRPC for Python waits for a message that never comes until the deadline is over, or the connection.
SHORT = {"grpc_timeout": "100m"}
LATE = {"4", "1", "reset"}
# What is sent, and how it ends. Where gRPC may decide, any end is one.
FRAMES = {
    "two messages where one is asked for": ([GOOD, GOOD], {}, {OK, INTERNAL, UNIMPLEMENTED}),
    "no message": ([], SHORT, {INTERNAL, UNIMPLEMENTED, *LATE}),
    "compressed without an encoding": ([framed(b"\0" * 9, flag=1)], {}, {INTERNAL, UNIMPLEMENTED, "reset"}),
    "a message that is cut": ([GOOD[:-3]], SHORT, {INTERNAL, UNIMPLEMENTED, *LATE}),
    "a deadline of centuries": ([GOOD], {"grpc_timeout": "99999999H"}, {OK}),
    "a deadline that is over": ([GOOD], {"grpc_timeout": "0n"}, LATE),
    "a deadline that is no time": (
        [GOOD],
        {"grpc_timeout": "soon"},
        {OK, INTERNAL, UNIMPLEMENTED, "reset", "closed"},
    ),
    "binary metadata that is no base64": ([GOOD], {"x_bin": "no base64!"}, {OK, INTERNAL, "reset", "closed"}),
    "a key in upper case": ([GOOD], {"X_Upper": "x"}, {"reset", "closed", INTERNAL}),
    "a trace that is none": (
        [GOOD],
        {"traceparent": "00-zz", "tracestate": "x" * 8000, "baggage": "k=v," * 50},
        {OK},
    ),
    "an encoding nobody knows": ([GOOD], {"grpc_encoding": "nonsense"}, {OK, UNIMPLEMENTED, INTERNAL}),
}


async def test_whatever_frames_say_the_call_ends_and_others_are_served(engine_server) -> None:
    serving = await engine_server()
    for name, (messages, headers, ends) in FRAMES.items():
        connection = await Http2.open(serving.server.options.uds)
        end = await connection.status_of(connection.call(GENERATE, messages, **headers))
        await connection.close()
        assert end in ends, f"{name}: {end}"
    await healthy(serving)


@pytest.mark.parametrize(
    "headers",
    [{"x_large": "x" * 40_000}, {f"x_{number}": "x" for number in range(1000)}],
    ids=["value", "keys"],
)
async def test_metadata_beyond_its_limit_is_refused_once_the_caller_has_heard_of_it(
    engine_server, headers: dict[str, str]
) -> None:
    serving = await engine_server()
    connection = await Http2.open(serving.server.options.uds)
    # gRPC keeps to a limit that the caller has acknowledged, and takes more until then.
    assert await connection.status_of(connection.call(GET_LOAD, [framed(b"")])) == OK
    assert await connection.status_of(connection.call(GENERATE, [GOOD], **headers)) == TOO_MUCH
    assert await connection.status_of(connection.call(GENERATE, [GOOD])) == OK
    await connection.close()
    await healthy(serving)


async def test_a_message_that_is_small_on_the_wire_and_large_unpacked_is_refused(engine_server) -> None:
    serving = await engine_server(max_message_bytes=1 << 20)
    bomb = framed(gzip.compress(bytes(32 << 20)), flag=1)
    connection = await Http2.open(serving.server.options.uds)
    pieces = [bomb[begin : begin + 16_000] for begin in range(0, len(bomb), 16_000)]
    stream = connection.call(GENERATE, pieces, grpc_encoding="gzip")
    assert await connection.status_of(stream) == TOO_MUCH
    await connection.close()
    await healthy(serving)


@pytest.mark.parametrize("count", long_but([1000], [1000, 50_000]))
async def test_calls_that_are_reset_as_soon_as_they_begin_leave_nothing(engine_server, count) -> None:
    serving = await engine_server()
    connection = await Http2.open(serving.server.options.uds)
    for number in range(count):
        if not await connection.has_room():
            await connection.close()
            connection = await Http2.open(serving.server.options.uds)
        stream = connection.call(GENERATE, [framed(ask(f"r{number}", max_tokens=4000).SerializeToString())])
        connection.state.reset_stream(stream)
        if number % 50 == 0:
            await connection.flush()
            await healthy(serving) if number % 5000 == 0 else None
    # The last one ends: the server has taken all of it. From whom it has had enough it refuses more.
    ends = (OK, "closed", "reset")
    assert await connection.status_of(connection.call(GET_LOAD, [framed(b"")])) in ends
    await connection.close()
    await healthy(serving)


async def test_connections_that_come_and_go_leave_no_descriptors(engine_server) -> None:
    serving = await engine_server()
    await healthy(serving)
    before = open_descriptors()
    for _ in range(5):
        connections = [await Http2.open(serving.server.options.uds) for _ in range(40)]
        calls = [connection.call(GET_LOAD, [framed(b"")]) for connection in connections]
        await asyncio.gather(*map(Http2.status_of, connections, calls))
        await asyncio.gather(*map(Http2.close, connections))
    # gRPC opens a few of its own when it first needs them.
    await until_true(lambda: open_descriptors() <= before + 8)


def open_descriptors() -> int:
    """Of this process, in which the server is too."""
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("said", [b"", b"PRI * HTTP/2.0\r\n", b"GET / HTTP/1.1\r\n"])
async def test_connections_that_say_nothing_are_in_nobodys_way(engine_server, said) -> None:
    serving = await engine_server()
    silent = [await asyncio.open_unix_connection(serving.server.options.uds) for _ in range(200)]
    for _, writer in silent:
        writer.write(said)
    await healthy(serving)
    for _, writer in silent:
        writer.close()


@long
async def test_a_handshake_that_does_not_come_is_not_waited_for(engine_server) -> None:
    serving = await engine_server()
    reader, writer = await asyncio.open_unix_connection(serving.server.options.uds)
    writer.write(b"PRI * HTTP/2.0\r\n")
    async with asyncio.timeout(60):
        while await reader.read(1 << 16):
            pass
    writer.close()
