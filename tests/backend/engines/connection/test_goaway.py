"""A GOAWAY with a code that gRPC does not know, from an engine or from a proxy in front of it.

Some versions of grpcio end their own process then, which nothing here can prevent (docs/reliability.md). With
a new grpcio that behaves otherwise than that page says, this fails.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import struct
import subprocess
import sys
import threading
from pathlib import Path

import grpc
import pytest

from enginewire.backend.engines.connection.client import EngineClient
from enginewire.backend.engines.failure import RequestFailed
from tests.patience import PATIENCE_SECONDS

HEADERS, SETTINGS, GOAWAY = 1, 4, 7
PREFACE_BYTES = len(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
NO_ERROR, HTTP_1_1_REQUIRED = 0, 13
OF_APACHE = 70007
"""Its httpd has been seen to send this when a connection is idle for too long."""
ABORTS = grpc.__version__.startswith(("1.84.", "1.85."))
CLIENT = """
import asyncio, sys
from tests.backend.engines.connection.test_goaway import be_told

asyncio.run(be_told(sys.argv[1]))
"""


async def be_told(target: str) -> None:
    """The body of a process that waits for an engine."""
    async with EngineClient(target) as client:
        try:
            await client.wait_ready(1)
        except RequestFailed:
            print("told")


def frame(kind: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, 0]) + struct.pack(">I", 0) + payload


def wait_for_call(connection: socket.socket) -> None:
    with connection.makefile("rb") as sent:
        sent.read(PREFACE_BYTES)
        while head := sent.read(9):
            sent.read(int.from_bytes(head[:3], "big"))
            if head[3] == HEADERS:
                return


def say_goodbye(listener: socket.socket, code: int) -> None:
    """Greet whoever connects, and send them away."""
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        # Who has been told, or has died of it, may be gone.
        with connection, contextlib.suppress(OSError):
            connection.sendall(frame(SETTINGS))
            wait_for_call(connection)
            connection.sendall(frame(GOAWAY, struct.pack(">II", 0, code)))
            connection.recv(1 << 16)


@pytest.mark.parametrize("code", [NO_ERROR, HTTP_1_1_REQUIRED, OF_APACHE])
def test_an_engine_that_says_goodbye_ends_a_process_only_where_the_page_says_so(
    code: int, socket_folder: Path
) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(socket_folder / "e"))
        listener.listen()
        threading.Thread(target=say_goodbye, args=(listener, code), daemon=True).start()
        argv = [sys.executable, "-c", CLIENT, f"unix:{socket_folder}/e"]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
        listener.shutdown(socket.SHUT_RDWR)
    if ABORTS and code > 12:
        assert done.returncode == -signal.SIGABRT
        assert "UNREACHABLE CODE" in done.stderr
    else:
        assert (done.returncode, done.stdout) == (0, "told\n")
