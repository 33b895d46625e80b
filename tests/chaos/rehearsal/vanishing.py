"""Callers whose machine is gone, and how long an engine goes on computing for them."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

import grpc

from enginewire import v1 as pb
from tests.chaos.callers import asked
from tests.chaos.rehearsal.cable import Cable
from tests.chaos.rehearsal.servers import (
    MOCKER,
    OPEN,
    PATIENCE_SECONDS,
    is_free,
    process,
    until,
)

GRPC_PORT, HTTP_PORT = 50052, 8000
CALLERS: Final = ("gRPC", "HTTP", "HTTP, not as a stream")


async def vanishing(cable: Cable, folder: Path, caller: str) -> dict[str, object]:
    """A pod with its engine behind a Unix socket, and a caller whose machine is gone: until that is seen."""
    engine = f"unix:{folder}/e"
    to_grpc = ("--host", cable.near, "--port", str(GRPC_PORT))
    to_http = ("--http-host", cable.near, "--http-port", str(HTTP_PORT))
    serve = ("enginewire.backend", "serve", "--target", engine, *to_grpc, *to_http, *OPEN)

    async def is_running() -> bool:
        return not await is_free(engine)

    async with process("enginewire.server", *MOCKER, *OPEN, "--uds", f"{folder}/e"), process(*serve):
        argv = cable.at_the_far_end(
            [sys.executable, "-m", "tests.chaos.rehearsal", "--call", caller, cable.near]
        )
        calling = await asyncio.create_subprocess_exec(*argv)
        assert await until(is_running)
        cable.silence()
        struck = time.monotonic()
        was_noticed = await until(partial(is_free, engine), 2 * PATIENCE_SECONDS)
        row = {
            "fault": f"a caller over {caller} vanishes",
            "freed_after_s": round(time.monotonic() - struck, 1),
            "wrong": int(not was_noticed),
        }
        calling.kill()
        await calling.wait()
        cable.heal()
    print(json.dumps(row), flush=True)
    return row


def call(caller: str, host: str) -> None:
    """What that caller is: it asks for more than anybody waits for, and reads on."""
    if caller == "gRPC":
        request = pb.BackendServiceGenerateRequest(token_ids=True, request=asked("", 100_000).request)
        with grpc.insecure_channel(f"{host}:{GRPC_PORT}") as to:
            for _ in pb.BackendServiceStub(to).Generate(request, wait_for_ready=True):
                pass
    body = json.dumps(
        {"prompt": "x", "max_tokens": 100_000, "ignore_eos": True, "stream": caller == "HTTP"}
    ).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    while True:
        with suppress(ConnectionRefusedError), socket.create_connection((host, HTTP_PORT)) as to:
            to.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            while to.recv(4096):
                pass
        time.sleep(0.1)
