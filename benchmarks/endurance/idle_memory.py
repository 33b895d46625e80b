"""What waits costs memory: a stream, a request in a queue, an HTTP connection; and if it is a straight line.

    python benchmarks/endurance/idle_memory.py [--counts 2500 5000 10000] [--json]

An engine server with the mocker and a backend with the HTTP face, each a process of its own, over Unix
sockets and loopback. Requests have 64 prompt tokens, and their first token takes an hour. For each kind of
load the servers begin anew, so that the figures of one do not hide in memory that another has left:

running      requests in the engine's batch, over one multiplexed stream to the engine
queued       the same with room for one of them in the batch: the others wait in the engine's queue
connections  HTTP connections to the backend that are open and say nothing
streaming    chat completions over HTTP whose answer has not begun, in both processes

KiB of resident memory per piece, from one count to the next.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import grpc
import psutil

from enginewire import v1 as pb
from enginewire.backend.engines.connection.client import EngineClient
from enginewire.calling.channel import open_channel

PROMPT_TOKENS = 64
HOUR_MS = 3_600_000
PER_FRAME = 100
SETTLE_SECONDS = 1.0
MANY = "1000000"
ENGINE = ["--engine", "mocker", "--mocker-ttft-ms", str(HOUR_MS), "--log-level", "error"]
ENGINE += ["--num-kv-blocks", MANY, "--max-num-batched-tokens", MANY, "--max-num-queued-reqs", MANY]
ENGINE += ["--max-num-queued-tokens", "1000000000"]
BACKEND = [
    "--http-port",
    "0",
    "--timeout-keep-alive",
    "3600",
    "--log-level",
    "error",
    "--limit-concurrency",
    MANY,
]

More = Callable[[int, int], Awaitable[None]]
"""Adds pieces from one count to the next."""


@dataclass(frozen=True, slots=True)
class Servers:
    """Two processes and where they listen."""

    engine: psutil.Process
    backend: psutil.Process
    target: str
    http_port: int

    def kib(self) -> tuple[float, float]:
        """Resident memory of the engine and of the backend."""
        engine, backend = (each.memory_info().rss / 1024 for each in (self.engine, self.backend))
        return engine, backend


@asynccontextmanager
async def servers(max_num_seqs: int) -> AsyncIterator[Servers]:
    with tempfile.TemporaryDirectory(prefix="ew-") as folder:
        sock, log = f"{folder}/e.sock", Path(folder) / "log"
        started = []
        try:
            with log.open("w") as out:
                argv = [*ENGINE, "--uds", sock, "--max-num-seqs", str(max_num_seqs)]
                started.append(begin("enginewire.server", argv, out))
                started.append(
                    begin("enginewire.backend", ["serve", "--target", f"unix:{sock}", *BACKEND], out)
                )
            async with EngineClient(f"unix:{sock}") as client:
                await client.wait_ready(60)
            port = await listening_port(psutil.Process(started[1].pid))
            engine, backend = (psutil.Process(each.pid) for each in started)
            await asyncio.sleep(SETTLE_SECONDS)
            yield Servers(engine, backend, f"unix:{sock}", port)
        finally:
            for each in started:
                each.kill()
                each.wait()


def begin(module: str, argv: list[str], out: IO[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", module, *argv], stdout=out, stderr=out)


async def listening_port(process: psutil.Process) -> int:
    async with asyncio.timeout(60):
        while True:
            for each in process.net_connections("tcp"):
                if each.status == psutil.CONN_LISTEN:
                    return int(each.laddr.port)
            await asyncio.sleep(0.1)


async def measure(
    counts: list[int], max_num_seqs: int, load: Callable[[Servers, AsyncExitStack], More]
) -> list[tuple[int, float, float]]:
    """(pieces, KiB of the engine, KiB of the backend) before any, and at each count."""
    async with AsyncExitStack() as stack:
        both = await stack.enter_async_context(servers(max_num_seqs))
        more = load(both, stack)
        await more(0, 20)  # what the first ones cost once
        await asyncio.sleep(SETTLE_SECONDS)
        found = [(20, *both.kib())]
        for last, count in pairwise([20, *counts]):
            await more(last, count)
            await asyncio.sleep(SETTLE_SECONDS)
            found.append((count, *both.kib()))
        return found


def request(number: int) -> pb.GenerateRequest:
    made = pb.GenerateRequest(request_id=f"request-{number}")
    made.request.token_ids.extend(97 + (number + place) % 26 for place in range(PROMPT_TOKENS))
    made.request.stop_conditions.max_tokens = 16
    return made


def multiplexed(both: Servers, stack: AsyncExitStack) -> More:
    """Requests over one stream, which stays open."""
    calls: list[grpc.aio.StreamStreamCall[Any, Any]] = []

    async def more(first: int, last: int) -> None:
        if not calls:
            channel = await stack.enter_async_context(open_channel(both.target))
            calls.append(pb.EngineServiceStub(channel).GenerateMultiplexed())
            stack.callback(calls[0].cancel)
        for begin in range(first, last, PER_FRAME):
            handles = range(begin, min(begin + PER_FRAME, last))
            submits = [pb.Submit(handle=handle, generate=request(handle)) for handle in handles]
            await calls[0].write(pb.GenerateMultiplexedRequest(submits=submits))
        accepted = 0
        while accepted < last - first:
            frame = await calls[0].read()
            for event in frame.events:
                assert event.WhichOneof("event") == "accepted", event
                accepted += 1

    return more


def connections(both: Servers, stack: AsyncExitStack) -> More:
    """Connections that have had one answer, and say nothing more."""

    async def more(first: int, last: int) -> None:
        for _ in range(first, last):
            reader, writer = await asyncio.open_connection("127.0.0.1", both.http_port)
            stack.callback(writer.close)
            writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            head = await reader.readuntil(b"\r\n\r\n")
            assert b" 200 " in head, head

    return more


def streaming(both: Servers, stack: AsyncExitStack) -> More:
    """Chat completions that wait for their first token."""
    asked = {"messages": [{"role": "user", "content": "x" * PROMPT_TOKENS}], "stream": True, "max_tokens": 16}
    body = json.dumps(asked).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    sent = head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body

    async def more(first: int, last: int) -> None:
        async with EngineClient(both.target) as client:
            for begin in range(first, last, PER_FRAME):
                end = min(begin + PER_FRAME, last)
                for _ in range(begin, end):
                    _, writer = await asyncio.open_connection("127.0.0.1", both.http_port)
                    stack.callback(writer.close)
                    writer.write(sent)
                while (load := await client.load()).running + load.waiting < end:  # noqa: ASYNC110  # no event
                    await asyncio.sleep(0.05)

    return more


KINDS = {
    "running": (multiplexed, True),
    "queued": (multiplexed, False),
    "connections": (connections, True),
    "streaming": (streaming, True),
}
"""The load, and whether all of it runs at once."""


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--counts", type=int, nargs="+", default=[2500, 5000, 10_000])
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    figures: dict[str, dict[str, dict[str, float]]] = {}
    for kind in options.kinds:
        load, all_run = KINDS[kind]
        found = asyncio.run(measure(options.counts, max(options.counts) * 2 if all_run else 1, load))
        for (count, *before), (more, *after) in pairwise(found):
            each = [round((b - a) / (more - count), 1) for a, b in zip(before, after, strict=True)]
            figures.setdefault(kind, {})[f"{count} to {more}"] = {"engine": each[0], "backend": each[1]}
            print(
                f"{kind:<12} {count:>6} to {more:<6} KiB each: engine {each[0]}, backend {each[1]}",
                flush=True,
            )
    if options.json:
        print(json.dumps(figures))


if __name__ == "__main__":
    main()
