"""Callers that go away at any moment and in any way: a bare socket to the HTTP face, a call to an engine."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct

import grpc
import orjson

from enginewire import v1 as pb

RESET = struct.pack("ii", 1, 0)
PATHS = ("/v1/completions", "/v1/chat/completions")


def http_request(draw: random.Random) -> bytes:
    """A question, streamed or not."""
    path = draw.choice(PATHS)
    asked: dict[str, object] = {"model": "mocker", "max_tokens": draw.choice([1, 4, 200])}
    asked["stream"] = draw.random() < 0.7
    if path == PATHS[0]:
        asked["prompt"] = "x" * draw.choice([1, 50, 2000])
    else:
        asked["messages"] = [{"role": "user", "content": "x" * draw.choice([1, 50, 2000])}]
    body = orjson.dumps(asked)
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


async def leave_http(host: str, port: int, draw: random.Random) -> None:
    """Ask, perhaps not to the end or twice, read a little or nothing, and go with a goodbye or without."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        await _ask(reader, writer, draw)
    except (OSError, TimeoutError):
        pass
    finally:
        if draw.random() < 0.5:
            # Gone without a goodbye: RST.
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            writer.transport.abort()
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def _ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, draw: random.Random) -> None:
    data = http_request(draw) * draw.choice([1, 1, 1, 2, 3])
    writer.write(data[: draw.choice([len(data), len(data), len(data), draw.randrange(len(data))])])
    if draw.random() < 0.2:
        writer.write_eof()
    if draw.random() < 0.5:
        async with asyncio.timeout(draw.random() * 0.1):
            await reader.read(draw.choice([1, 100, 10_000]))
    await asyncio.sleep(draw.choice([0.0, draw.random() * 0.01, draw.random() * 0.2]))


async def leave_grpc(stub: pb.EngineServiceStub, number: int, draw: random.Random) -> None:
    """Call, and cancel it or run into a deadline at any moment."""
    request = pb.GenerateRequest(request_id=f"leaver-{number}-{draw.random()}")
    request.request.token_ids.extend(b"x" * draw.choice([1, 50, 2000]))
    request.request.stop_conditions.max_tokens = draw.choice([1, 4, 200])
    with contextlib.suppress(grpc.aio.AioRpcError, asyncio.CancelledError):
        if draw.random() < 0.4:
            async for _ in stub.Generate(request, timeout=draw.choice([0.0001, 0.002, 0.02, 0.1])):
                pass
            return
        call = stub.Generate(request)
        if draw.random() < 0.5:
            await call.read()
        await asyncio.sleep(draw.choice([0.0, draw.random() * 0.004, draw.random() * 0.1]))
        call.cancel()
