"""What an engine server keeps of cancelled requests: its memory over tens of thousands of them.

    python benchmarks/endurance/soak.py [--requests 50000] [--every 5000] [--streams 32] [--per-request]
        [-- engine options, such as --kv-cache-memory-bytes 67108864]

An engine server on a Unix socket serves the demo model. Every request has a prompt of its own and is
cancelled after a few tokens: while it waits, while its prompt is computed, or while it answers. After every
few thousand the server has nothing to do, and its resident memory is written down.

Three figures are written down. `resident`: memory of the process itself, which grows while KV blocks are
touched for the first time, and for long after that a little. `malloc`: what of it is in use by C and C++,
kernels for new numbers of rows among it; with `-- --batch-invariant` there is one number. `blocks`: what is
in use by Python; a leak of one object per request shows as 5,000 blocks in each line. The types of which
there are more objects than halfway are listed at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from counted_server import COUNTS_VARIABLE

from enginewire import v1 as pb
from enginewire.backend.engines.connection.client import EngineClient
from enginewire.program import event_loop

SEED = 7
PROMPT_TOKENS = (1, 200)
MOST_TOKENS_READ = 12
IDLE_SECONDS = 60.0
MOST_TYPES = 8


@dataclass(frozen=True, slots=True)
class Server:
    """An engine server that counts what lives in it."""

    target: str
    pid: int
    counts_file: Path

    async def counts(self) -> dict[str, Any]:
        """See `counted_server.counts`."""
        os.kill(self.pid, signal.SIGUSR1)
        async with asyncio.timeout(IDLE_SECONDS):
            while not self.counts_file.exists():  # noqa: ASYNC110  # another process writes it
                await asyncio.sleep(0.05)
        counts: dict[str, Any] = json.loads(self.counts_file.read_text())
        self.counts_file.unlink()
        return counts

    def resident_mib(self) -> float:
        """Memory that is the process's own: files such as shared libraries are left out."""
        lines = Path(f"/proc/{self.pid}/smaps_rollup").read_text().splitlines()
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("Anonymous:"))


@asynccontextmanager
async def engine_process(options: list[str]) -> AsyncIterator[Server]:
    """An engine server with the demo model."""
    with tempfile.TemporaryDirectory(prefix="ew-") as name:
        folder = Path(name)
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(Path(__file__).with_name("counted_server.py")),
            "--uds", f"{folder}/engine.sock", "--log-level", "error", *options,
            env={**os.environ, COUNTS_VARIABLE: f"{folder}/counts"},
        )  # fmt: skip
        try:
            yield Server(f"unix:{folder}/engine.sock", process.pid, folder / "counts")
        finally:
            process.terminate()
            await process.wait()


def request(number: int, random: Random, vocab_size: int) -> pb.GenerateRequest:
    """A long answer to a prompt that nobody else has."""
    prompt = [random.randrange(2, vocab_size) for _ in range(random.randint(*PROMPT_TOKENS))]
    return pb.GenerateRequest(
        request_id=f"soak-{number}",
        request=pb.PreprocessedRequest(
            token_ids=prompt,
            stop_conditions=pb.StopConditions(max_tokens=300, ignore_eos=True),
            sampling_options=pb.SamplingOptions(temperature=1.0, n=random.choice((1, 1, 1, 2))),
        ),
    )


async def cancel_one(client: EngineClient, number: int, vocab_size: int) -> None:
    random = Random(f"{SEED}-{number}")
    stream = await client.submit(request(number, random, vocab_size))
    wanted, seen = random.randint(0, MOST_TOKENS_READ), 0
    while seen < wanted:
        chunks = await stream.read()
        assert chunks, "nothing but the cancellation ends these answers"
        seen += sum(len(chunk.token_ids) for chunk in chunks)
    stream.abort("enough")


async def cancel_many(client: EngineClient, numbers: range, streams: int, vocab_size: int) -> None:
    waiting = iter(numbers)

    async def work() -> None:
        for number in waiting:
            await cancel_one(client, number, vocab_size)

    await asyncio.gather(*(work() for _ in range(streams)))


async def become_idle(client: EngineClient) -> None:
    """Return once nothing runs or waits."""
    async with asyncio.timeout(IDLE_SECONDS):
        while (load := await client.load()).running or load.waiting:  # noqa: ASYNC110  # another process
            await asyncio.sleep(0.05)


async def soak(options: argparse.Namespace) -> list[dict[str, Any]]:
    """One row per `options.every` requests."""
    rows = []
    async with (
        engine_process(options.engine) as server,
        EngineClient(server.target, multiplexed=not options.per_request) as client,
    ):
        info = await client.wait_ready(60)
        for done in range(0, options.requests + 1, options.every):
            begin = max(done - options.every, 0)
            await cancel_many(client, range(begin, done), options.streams, info.config.vocab_size)
            await become_idle(client)
            rows.append({"requests": done, "resident_mib": server.resident_mib(), **await server.counts()})
            print_row(rows[-1])
    return rows


def print_row(row: dict[str, Any]) -> None:
    print(
        "{requests:9,} requests  resident {resident_mib:7.1f} MiB  malloc {malloc_mib:7.1f} MiB used"
        " {malloc_free_mib:7.1f} free  {blocks:9,} blocks".format(**row),
        flush=True,
    )


def growth(rows: list[dict[str, Any]]) -> dict[str, int]:
    """By how many objects each type grew in the second half of a run, the most first."""
    middle, last = Counter(rows[len(rows) // 2]["objects"]), Counter(rows[-1]["objects"])
    return dict((last - middle).most_common(MOST_TYPES))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=50_000)
    parser.add_argument("--every", type=int, default=5_000)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--per-request", action="store_true", help="a Generate call for each request")
    parser.add_argument("engine", nargs="*", help="options of the engine server, after --")
    rows = event_loop.run(soak(parser.parse_args()))
    print("more than halfway:", growth(rows))


if __name__ == "__main__":
    main()
