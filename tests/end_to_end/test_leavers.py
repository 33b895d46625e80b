"""Hundreds of callers that leave at any moment: no process of ours calls that an error."""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc

from enginewire import v1 as pb
from tests.backend.our_processes import is_idle, until
from tests.end_to_end.leavers import leave_grpc, leave_http
from tests.patience import PATIENCE_SECONDS

SEED = 1
NUM_LEAVERS = 300
AT_ONCE = 40
ENGINE = ("--engine", "mocker", "--mocker-ttft-ms", "5", "--mocker-itl-ms", "1")
FAULTS = re.compile(r"Traceback|never retrieved|Exception in|\"level\": \"error\"")


@contextlib.contextmanager
def logged(log: Path, *argv: str) -> Iterator[None]:
    """A process of ours whose whole output goes to a file, and which ends on SIGTERM."""
    with log.open("wb") as output:
        process = subprocess.Popen([sys.executable, "-m", *argv], stdout=output, stderr=output)
    try:
        yield
        process.terminate()
        assert process.wait(PATIENCE_SECONDS) == 0
    finally:
        process.kill()
        process.wait()


async def leave(target: str, host: str, port: int) -> None:
    places = asyncio.Semaphore(AT_ONCE)
    async with grpc.aio.insecure_channel(target) as channel:
        stub = pb.EngineServiceStub(channel)

        async def one(number: int) -> None:
            draw = random.Random(SEED * 1_000_003 + number)
            async with places:
                if number % 3 == 0:
                    await leave_grpc(stub, number, draw)
                else:
                    await leave_http(host, port, draw)

        await asyncio.gather(*map(one, range(NUM_LEAVERS)))


def test_callers_that_leave_at_any_moment_are_no_error_and_leave_nothing_behind(tmp_path: Path) -> None:
    engine, backend = tmp_path / "engine.log", tmp_path / "backend.log"
    target = f"unix:{tmp_path}/e"
    serve = ("enginewire.backend", "serve", "--http-port=0", f"--uds={tmp_path}/b", "--target", target)
    with (
        logged(engine, "enginewire.server", *ENGINE, "--uds", f"{tmp_path}/e"),
        logged(backend, *serve),
    ):
        listening = re.compile(r"listening on http://([\d.]+):(\d+)")
        until(lambda: bool(listening.search(backend.read_text())))
        host, port = listening.search(backend.read_text()).groups()
        asyncio.run(leave(target, host, int(port)))
        until(lambda: is_idle(target))
    assert not FAULTS.search(engine.read_text()), engine.read_text()
    assert not FAULTS.search(backend.read_text()), backend.read_text()
