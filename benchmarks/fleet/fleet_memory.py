"""What an engine and a stream cost a backend: its memory and its connections, over real sockets.

    python benchmarks/fleet/fleet_memory.py [--engines 32] [--streams 2000] [--json]

The engines are mockers behind engine servers on Unix sockets, all in a process of their own. The streams are
requests of 64 prompt tokens that wait for a slow first token, then have 16 tokens each.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import multiprocessing
import tempfile
from multiprocessing.connection import Connection
from pathlib import Path

import psutil
from tokenizers import Tokenizer

from enginewire import v1 as pb
from enginewire.backend.backend import Backend
from enginewire.backend.decoding.vocabulary import Vocabulary
from enginewire.backend.engines.connection.client import EngineClient
from enginewire.backend.engines.endpoints import Endpoints
from enginewire.server.config.options import ServerOptions
from enginewire.server.engines.mocker.engine import MockerEngine, MockerOptions
from enginewire.server.engines.mocker.tokenizer import byte_tokenizer
from enginewire.server.server import EngineServer

SLOW = MockerOptions(
    ttft_ms=60_000, itl_ms=50, max_num_seqs=4096, num_kv_blocks=10**6, max_num_batched_tokens=10**6
)


def serve(sockets: list[Path], ready: Connection) -> None:
    """A process with an engine server at each socket, until it is killed."""

    async def run() -> None:
        for socket in sockets:
            server = EngineServer(MockerEngine(SLOW), ServerOptions(engine="mocker", uds=socket))
            await server.listen()
            await server.start()
        ready.send(None)
        await asyncio.Event().wait()

    asyncio.run(run())


class Memory:
    """Of this process, in KiB."""

    def __init__(self) -> None:
        self._process = psutil.Process()

    def now(self) -> float:
        """What it holds, garbage left out."""
        gc.collect()
        return self._process.memory_info().rss / 1024

    def sockets(self) -> int:
        """Open descriptors."""
        return self._process.num_fds()


async def measure(sockets: list[Path], num_streams: int) -> dict[str, object]:
    """With all engines, then with all streams."""
    memory = Memory()
    tokenizer = Tokenizer.from_str(byte_tokenizer().files["tokenizer.json"].decode())
    vocabulary = Vocabulary(tokenizer)
    # gRPC's own threads and buffers are there after the first connection.
    async with Endpoints([EngineClient(f"unix:{sockets[0]}")]) as one:
        await one.wait_ready(60)
        await asyncio.sleep(1)
    before, descriptors = memory.now(), memory.sockets()
    async with Endpoints([EngineClient(f"unix:{socket}") for socket in sockets]) as engines:
        for endpoint in engines.all:
            await endpoint.client.wait_ready(60)
        await asyncio.sleep(2)
        with_engines, more = memory.now(), memory.sockets() - descriptors
        backend = Backend(engines, vocabulary)
        tasks = [asyncio.create_task(drain(backend, number)) for number in range(num_streams)]
        while sum(endpoint.in_flight for endpoint in engines.all) < num_streams:  # noqa: ASYNC110  # no event
            await asyncio.sleep(0.1)
        await asyncio.sleep(1)
        with_streams = memory.now()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return {
        "engines": len(sockets),
        "streams": num_streams,
        "kib_per_engine": round((with_engines - before) / len(sockets)),
        "kib_per_stream": round((with_streams - with_engines) / num_streams, 1),
        "descriptors_per_engine": round(more / len(sockets), 2),
        "mib_in_all": round(with_streams / 1024),
    }


async def drain(backend: Backend, number: int) -> None:
    """One request."""
    request = pb.PreprocessedRequest(token_ids=[97 + (number + place) % 26 for place in range(64)])
    request.stop_conditions.max_tokens = 16
    async for _ in backend.generate(request):
        pass


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--engines", type=int, default=32)
    parser.add_argument("--streams", type=int, default=2000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ew-") as folder:
        sockets = [Path(folder) / f"{number}.sock" for number in range(options.engines)]
        here, there = multiprocessing.get_context("spawn").Pipe()
        engines = multiprocessing.get_context("spawn").Process(
            target=serve, args=(sockets, there), daemon=True
        )
        engines.start()
        here.recv()
        figures = asyncio.run(measure(sockets, options.streams))
        engines.kill()
        engines.join()
    print(
        json.dumps(figures)
        if options.json
        else "\n".join(f"{name}: {value}" for name, value in figures.items())
    )


if __name__ == "__main__":
    main()
