"""How long a user waits for the demo, and whether a server that says it is ready is.

    python benchmarks/model/cold_start.py [--rounds 5] [--json]

cold  nothing of it was read or built before: kernels are compiled, and where this may drop the page cache
      (Linux, root), files come from the disk
warm  the start after that

`ready` is from typing `enginewire demo` to its line that says so, with two processes loaded; `imports` is
what Python alone takes to import torch, in the same state. `first` and `tenth` are whole answers of a server
to its first requests, one after the other, with equally many tokens. Medians; one JSON line with --json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from enginewire import v1 as pb
from enginewire.backend.engines.connection.client import EngineClient
from enginewire.calling.channel import open_channel

DROP_CACHES = Path("/proc/sys/vm/drop_caches")
READY = "Ready after"
NUM_TOKENS = 32
START_SECONDS = 120.0

Seconds = dict[str, float]


def forget_files() -> bool:
    """Empty the page cache; false where this process may not."""
    try:
        os.sync()
        DROP_CACHES.write_text("3\n")
    except OSError:
        return False
    return True


def seconds_of_imports() -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    return time.perf_counter() - began


def seconds_until_ready() -> float:
    began = time.perf_counter()
    command = [Path(sys.executable).with_name("enginewire"), "demo"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as demo:
        assert demo.stdout
        ready = next(time.perf_counter() for line in demo.stdout if line.startswith(READY))
        demo.stdout.read()
    assert demo.returncode == 0, "the demo failed"
    return ready - began


async def seconds_of_answers() -> list[float]:
    """The first ten answers of a server that has just said that it is ready."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "enginewire.server", "builtin:demo", "--log-level", "error"]
        command += ["--uds", f"{folder}/engine.sock"]
        server = await asyncio.create_subprocess_exec(*command)
        target = f"unix:{folder}/engine.sock"
        try:
            async with EngineClient(target) as client:
                await client.wait_ready(START_SECONDS)
            async with open_channel(target) as channel:
                await channel.channel_ready()
                return [await seconds_of_answer(pb.EngineServiceStub(channel), n) for n in range(10)]
        finally:
            server.terminate()
            await server.wait()


async def seconds_of_answer(engine: pb.EngineServiceAsyncStub, number: int) -> float:
    asked = pb.PreprocessedRequest(token_ids=list(b"%d: what does Drain do?" % number))
    asked.stop_conditions.max_tokens = NUM_TOKENS
    asked.stop_conditions.ignore_eos = True
    began = time.perf_counter()
    async for _ in engine.Generate(pb.GenerateRequest(request_id=f"r{number}", request=asked)):
        pass
    return time.perf_counter() - began


def start(caches: Path, *, is_cold: bool) -> Seconds:
    """One start of each; `caches` is a folder for what is built."""

    def measured(measure: Callable[[], Any]) -> Any:
        if is_cold:
            os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(dir=caches)
            forget_files()
        return measure()

    imports, ready = measured(seconds_of_imports), measured(seconds_until_ready)
    answers = measured(lambda: asyncio.run(seconds_of_answers()))
    return {"imports": imports, "ready": ready, "first": answers[0], "tenth": answers[-1]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", action="store_true", help="a last line for programs")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    runs: dict[str, list[Seconds]] = {"cold": [], "warm": []}
    for _ in range(options.rounds):
        with tempfile.TemporaryDirectory() as caches:
            for state, found in runs.items():
                found.append(start(Path(caches), is_cold=state == "cold"))
                print(state, found[-1], file=sys.stderr, flush=True)
    medians = {
        state: {name: round(statistics.median(run[name] for run in found), 3) for name in found[0]}
        for state, found in runs.items()
    }
    for state, median in medians.items():
        print(f"{state}: {', '.join(f'{name} {seconds:.2f} s' for name, seconds in median.items())}")
    if options.json:
        ratio = {state: round(median["first"] / median["tenth"], 2) for state, median in medians.items()}
        print(json.dumps({"seconds": medians, "ratio_first_to_tenth": ratio, "drops_files": forget_files()}))


if __name__ == "__main__":
    main()
