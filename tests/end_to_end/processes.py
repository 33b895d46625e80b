"""An engine server as a process of its own, and a client process that can be killed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from enginewire import v1 as pb
from tests.patience import PATIENCE_SECONDS
from tests.server.serving import ask


class EngineProcess:
    """`python -m enginewire.server --engine mocker` with its output in a file."""

    def __init__(
        self,
        folder: Path,
        *arguments: str,
        umask: int = -1,
        engine: str = "mocker",
        program: Sequence[str] = ("-m", "enginewire.server"),
    ) -> None:
        """`program` is what Python is told to run."""
        self.log_path = folder / f"log-{time.monotonic_ns()}"
        command = [
            sys.executable,
            *program,
            "--engine",
            engine,
            "--log-format",
            "json",
            *arguments,
        ]
        with self.log_path.open("w") as log:
            self.process = subprocess.Popen(
                command, stderr=log, stdout=log, umask=umask, start_new_session=True
            )

    def events(self) -> list[str]:
        """What was logged so far."""
        lines = self.log_path.read_text().splitlines()
        return [json.loads(line)["event"] for line in lines if line.startswith("{") and line.endswith("}")]

    def wait_for(self, beginning: str) -> str:
        """The first log event that begins so; fails when the process ends without it."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            has_ended = self.process.poll() is not None
            for event in self.events():
                if event.startswith(beginning):
                    return event
            assert not has_ended, self.log_path.read_text()
            time.sleep(0.01)
        raise AssertionError(f"no {beginning!r} in: {self.log_path.read_text()}")

    def target(self) -> str:
        """Where it listens, once it is ready."""
        self.wait_for("ready")
        return self.wait_for("listening on").removeprefix("listening on ")

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    def exit_code(self, within: float = PATIENCE_SECONDS) -> int:
        """Wait for the end."""
        return self.process.wait(within)

    def end(self) -> None:
        """Leave nothing behind, whatever the test did."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


class Client:
    """A channel to an engine process."""

    def __init__(self, target: str, credentials: grpc.ChannelCredentials | None = None) -> None:
        alone = [("grpc.use_local_subchannel_pool", 1)]
        self.channel = (
            grpc.aio.secure_channel(target, credentials, options=alone)
            if credentials
            else grpc.aio.insecure_channel(target, options=alone)
        )
        self.engine = pb.EngineServiceStub(self.channel)
        self.discovery = pb.DiscoveryServiceStub(self.channel)
        self.health = health_pb2_grpc.HealthStub(self.channel)

    async def load(self) -> pb.Load:
        """GetLoad."""
        return (await self.discovery.GetLoad(pb.GetLoadRequest())).load

    async def until_draining(self) -> None:
        """Return when it says that it drains."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (await self.load()).state != pb.ENGINE_STATE_DRAINING:  # noqa: ASYNC110  # no event
                await asyncio.sleep(0.005)

    async def until_running(self, count: int) -> None:
        """Return when that many sequences run and no other is in the engine."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                load = await self.load()
                if (load.running, load.waiting) == (count, 0) and (count or not load.kv_blocks_used):
                    return
                await asyncio.sleep(0.01)

    async def finish_of(self, request_id: str, max_tokens: int) -> tuple[int, int]:
        """Generate; returns the finish reason and the number of tokens."""
        count = 0
        async for response in self.engine.Generate(ask(request_id, max_tokens=max_tokens)):
            count += len(response.output.token_ids)
        return response.output.finish_reason, count

    async def watch_health(self, history: list[int]) -> None:
        """Every readiness status, into `history`, until the server ends the stream."""
        request = health_pb2.HealthCheckRequest(service="enginewire.v1.EngineService")
        async for answer in self.health.Watch(request):
            history.append(answer.status)


def start_client_process(target: str, requests: int) -> subprocess.Popen[str]:
    """A process that starts endless requests both ways, says so, and waits to be killed."""
    program = f"""
import asyncio, sys
from tests.end_to_end.processes import hold_requests
asyncio.run(hold_requests({target!r}, {requests}))
"""
    return subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)


async def hold_requests(target: str, count: int) -> None:
    """The body of that process."""
    client = Client(target)
    calls = [client.engine.Generate(ask(f"s{i}", max_tokens=4000)) for i in range(count)]
    shared = client.engine.GenerateMultiplexed()
    for i in range(count):
        submit = pb.Submit(handle=i, generate=ask(f"m{i}", max_tokens=4000))
        await shared.write(pb.GenerateMultiplexedRequest(submits=[submit]))
    for call in calls:
        await call.read()
    await shared.read()
    print("running", flush=True)
    await asyncio.Event().wait()
