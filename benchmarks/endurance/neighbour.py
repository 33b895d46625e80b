"""How long another caller's first token takes while one caller has 500 requests at the same engine.

    python benchmarks/endurance/neighbour.py [--engine torch] [--one-key]

Starts a server with a key for each of two callers, asks as the second one alone, and then while the first
one's requests wait, which another process sends. With `--one-key` both are the same caller, as without keys.
Prints one line of JSON; times in ms. `asked` is how many requests the second caller got in within
`--seconds`.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

import grpc

from enginewire import v1 as pb

FLOOD, MINE = "benchmark-key-of-the-flood", "benchmark-key-of-the-other"
START_SECONDS = 120.0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--engine", default="mocker", help="mocker, or torch for builtin:demo")
    parser.add_argument("--requests", type=int, default=500, help="what the first caller sends at once")
    parser.add_argument(
        "--asked", type=int, default=300, help="what the second one sends at most, one after the other"
    )
    parser.add_argument("--seconds", type=float, default=40.0, help="for that, alone and beside")
    parser.add_argument("--tokens", type=int, default=32, help="of each answer of the first caller")
    parser.add_argument("--max-num-seqs", type=int, default=16)
    parser.add_argument("--one-key", action="store_true", help="both callers are one")
    parser.add_argument("--flood", help=argparse.SUPPRESS)
    return parser.parse_args()


@contextmanager
def server(options: argparse.Namespace, folder: Path) -> Iterator[str]:
    """A running server; the target that reaches it."""
    keys = folder / "callers"
    lines = [
        f"infer sha256:{sha256(key.encode()).hexdigest()} name={name}"
        for name, key in (("flood", FLOOD), ("mine", MINE))
    ]
    keys.write_text("\n".join(lines) + "\n")
    times = ["--mocker-ttft-ms", "20", "--mocker-itl-ms", "5"] if options.engine == "mocker" else []
    socket = folder / "engine.sock"
    command = [
        *(sys.executable, "-m", "enginewire.server", "--engine", options.engine, *times),
        *("--uds", str(socket), "--api-key-file", str(keys), "--log-level", "warning"),
        *("--max-num-seqs", str(options.max_num_seqs)),
    ]
    process = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"})
    try:
        yield f"unix:{socket}"
    finally:
        process.terminate()
        process.wait(30)


def bearing(key: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {key}"),)


def request(name: str, tokens: int) -> pb.GenerateRequest:
    asked = pb.PreprocessedRequest(token_ids=list(b"What does Drain do?"))
    asked.stop_conditions.max_tokens = tokens
    asked.stop_conditions.ignore_eos = True
    asked.bypass_prefix_cache = True
    return pb.GenerateRequest(request_id=name, request=asked)


async def first_tokens(engine: pb.EngineServiceStub, prefix: str, number: int, seconds: float) -> list[float]:
    """The times to the first token of so many requests of the second caller, in ms; fewer if time is up."""
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < number and time.perf_counter() < end:
        began = time.perf_counter()
        call = engine.Generate(request(f"{prefix}{len(times)}", 4), metadata=bearing(MINE))
        async for message in call:
            if message.output.token_ids:
                times.append((time.perf_counter() - began) * 1000)
                break
        call.cancel()
    return times


async def flood(options: argparse.Namespace) -> None:
    """Keep so many requests at the engine until this process is ended."""
    ended: asyncio.Queue[int] = asyncio.Queue()
    for handle in range(options.requests):
        ended.put_nowait(handle)

    async def frames() -> AsyncIterator[pb.GenerateMultiplexedRequest]:
        for serial in itertools.count():
            again = request(f"flood{serial}", options.tokens)
            yield pb.GenerateMultiplexedRequest(submits=[pb.Submit(handle=await ended.get(), generate=again)])

    key = MINE if options.one_key else FLOOD
    async with grpc.aio.insecure_channel(options.flood) as channel:
        async for frame in pb.EngineServiceStub(channel).GenerateMultiplexed(frames(), metadata=bearing(key)):
            for event in frame.events:
                if event.HasField("status") or event.output.finish_reason:
                    ended.put_nowait(event.handle)


@contextmanager
def flooding(target: str) -> Iterator[None]:
    """The flood, in a process of its own: it must not keep the clock waiting."""
    process = subprocess.Popen([sys.executable, *sys.argv, "--flood", target])
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)


def quantile(times: list[float], part: float) -> float:
    return round(sorted(times)[min(len(times) - 1, int(len(times) * part))], 1)


async def measure(options: argparse.Namespace, target: str) -> dict[str, object]:
    async with grpc.aio.insecure_channel(target) as channel:
        await asyncio.wait_for(channel.channel_ready(), START_SECONDS)
        engine, discovery = pb.EngineServiceStub(channel), pb.DiscoveryServiceStub(channel)
        while (await load(discovery)).state != pb.ENGINE_STATE_READY:  # noqa: ASYNC110  # of another process
            await asyncio.sleep(0.2)
        await first_tokens(engine, "warm", 5, START_SECONDS)
        alone = await first_tokens(engine, "alone", options.asked, options.seconds)
        with flooding(target):
            while (await load(discovery)).waiting < options.requests // 2:  # noqa: ASYNC110  # the same
                await asyncio.sleep(0.05)
            before = (await load(discovery)).requests_finished
            beside = await first_tokens(engine, "beside", options.asked, options.seconds)
            finished = (await load(discovery)).requests_finished - before - len(beside)
    p99 = quantile(alone, 0.99), quantile(beside, 0.99)
    return {
        "engine": options.engine,
        "callers": 1 if options.one_key else 2,
        "flood_requests": options.requests,
        "flood_finished_meanwhile": finished,
        "asked": len(beside),
        "alone_p50_ms": quantile(alone, 0.5),
        "alone_p99_ms": p99[0],
        "beside_p50_ms": quantile(beside, 0.5),
        "beside_p99_ms": p99[1],
        "beside_slowest_ms": [round(each, 1) for each in sorted(beside)[-5:]],
        "ratio_p99": round(p99[1] / p99[0], 2),
    }


async def load(discovery: pb.DiscoveryServiceStub) -> pb.Load:
    return (await discovery.GetLoad(pb.GetLoadRequest(), metadata=bearing(MINE))).load


def main() -> int:
    options = parse()
    if options.flood:
        asyncio.run(flood(options))
        return 0
    with tempfile.TemporaryDirectory() as folder, server(options, Path(folder)) as target:
        print(json.dumps(asyncio.run(measure(options, target))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
