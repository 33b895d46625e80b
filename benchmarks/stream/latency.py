"""How much later than the engine emits a token its text is in the caller's hands.

    python benchmarks/stream/latency.py [--streams 256] [--hz 100] [--seconds 5] [--timeout 60]
        [--per-request] [--inline] [--json]

An engine server on a Unix socket, its engine a mocker that notes when it emitted each token, and this
process: backend, detokenizer, four stop strings, and one consumer per request, which notes when it got each
text: an asyncio task, or with --inline a function that the backend calls. Both processes read the same
clock. What lies between is everything of ours.

All streams get their tokens in the same step, so the consumers of one step run one after the other: the
first one's latency is the way, and from it to the last one's is the work of a step.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from stamping import STAMPS_VARIABLE, STEP_VARIABLE
from tokenizers import Tokenizer

from enginewire import v1 as pb
from enginewire.backend.backend import Backend
from enginewire.backend.decoding.annotated import BackendOutput
from enginewire.backend.decoding.vocabulary import Vocabulary
from enginewire.backend.engines.connection.client import EngineClient
from enginewire.program import event_loop

PROMPT = list(b"The quick brown fox jumps over the lazy dog and runs away. ")
STOPS = ["\n\nUser:", "<|end|>", "###", "STOP HERE"]
WARM_UP_SECONDS = 1.0
HERE = os.path.dirname(os.path.abspath(__file__))

Arrivals = dict[str, list[int]]
"""When each token of each request came, in nanoseconds."""


@asynccontextmanager
async def engine_process(folder: Path, streams: int, hz: float) -> AsyncIterator[str]:
    """The target of an engine server that leaves its notes in `folder` when it ends."""
    paths = [HERE, *filter(None, [os.environ.get("PYTHONPATH")])]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "enginewire.server", "--engine", "stamping:StampingMocker",
        "--uds", f"{folder}/engine.sock", "--max-num-seqs", str(streams),
        "--max-num-queued-reqs", str(streams), "--log-level", "error",
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            STAMPS_VARIABLE: f"{folder}/stamps",
            STEP_VARIABLE: str(1000 / hz),
        },
    )  # fmt: skip
    try:
        yield f"unix:{folder}/engine.sock"
    finally:
        process.terminate()
        await process.wait()


async def consume(
    backend: Backend, request_id: str, tokens: int, timeout: float | None, inline: bool, arrivals: Arrivals
) -> None:
    request = pb.PreprocessedRequest(
        token_ids=PROMPT, stop_conditions=pb.StopConditions(max_tokens=tokens, ignore_eos=True, stop=STOPS)
    )
    stamps = arrivals[request_id] = []

    def note(output: BackendOutput) -> None:
        stamps.extend([time.monotonic_ns()] * len(output.token_ids))

    outputs = backend.generate(
        request, request_id=request_id, timeout=timeout, inline=note if inline else None
    )
    async for item in outputs:
        assert item.data is not None, item.error
        note(item.data)
    assert len(stamps) == tokens, f"{request_id}: {len(stamps)} tokens instead of {tokens}"


async def measure(
    streams: int, hz: float, seconds: float, multiplexed: bool, timeout: float | None, inline: bool
) -> dict[str, float]:
    arrivals: Arrivals = {}
    tokens = round(hz * (WARM_UP_SECONDS + seconds))
    with tempfile.TemporaryDirectory(prefix="ew-") as name:
        folder = Path(name)
        async with (
            engine_process(folder, streams, hz) as target,
            EngineClient(target, multiplexed=multiplexed) as client,
        ):
            await client.wait_ready(30)
            files = await client.tokenizer_files()
            backend = Backend(client, Vocabulary(Tokenizer.from_str(files["tokenizer.json"].decode())))
            gc.collect()
            gc.freeze()
            begin = time.process_time()
            await asyncio.gather(
                *(
                    consume(backend, f"s{number}", tokens, timeout, inline, arrivals)
                    for number in range(streams)
                )
            )
            cpu = time.process_time() - begin
        emitted = json.loads((folder / "stamps").read_text())
    return {
        "backend_cpu_share": cpu / (tokens / hz),
        **latencies(arrivals, emitted, round(hz * WARM_UP_SECONDS)),
    }


def latencies(
    arrivals: Arrivals, emitted: list[tuple[int, list[str], list[int]]], warm_up: int
) -> dict[str, float]:
    """Milliseconds from emission to text, and the rate of the engine's steps behind the warm-up."""
    added, steps, firsts, lasts = [], [], [], []
    for stamp, request_ids, positions in emitted:
        rows = [
            (arrivals[request_id][position] - stamp) / 1e6
            for request_id, position in zip(request_ids, positions, strict=True)
            if position >= warm_up
        ]
        if rows:
            steps.append(stamp)
            added += rows
            firsts.append(min(rows))
            lasts.append(max(rows))
    percentiles = statistics.quantiles(added, n=1000, method="inclusive")
    return {
        "tokens": len(added),
        "steps_per_s": (len(steps) - 1) / (steps[-1] - steps[0]) * 1e9,
        "p50_ms": percentiles[499],
        "p90_ms": percentiles[899],
        "p99_ms": percentiles[989],
        "max_ms": max(added),
        "p50_of_first_consumer_ms": statistics.median(firsts),
        "p50_of_last_consumer_ms": statistics.median(lasts),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--hz", type=float, default=100.0, help="tokens per second of each stream")
    parser.add_argument("--seconds", type=float, default=5.0, help="measured, behind one of warm-up")
    parser.add_argument("--timeout", type=float, help="seconds each request may take; none unless given")
    parser.add_argument("--per-request", action="store_true", help="a Generate call for each request")
    parser.add_argument("--inline", action="store_true", help="consumers are functions, not tasks")
    parser.add_argument("--json", action="store_true", help="print one line of JSON at the end")
    arguments = parser.parse_args()
    busy_before = os.getloadavg()[0]
    results = event_loop.run(
        measure(
            arguments.streams,
            arguments.hz,
            arguments.seconds,
            not arguments.per_request,
            arguments.timeout,
            arguments.inline,
        )
    )
    results |= {"cores": os.cpu_count() or 0, "load_average_before": busy_before}
    rounded = {name: round(value, 3) for name, value in results.items()}
    for name, value in rounded.items():
        print(f"{value:12,}  {name}")
    if arguments.json:
        print(json.dumps({"streams": arguments.streams, "hz": arguments.hz, **rounded}))


if __name__ == "__main__":
    main()
