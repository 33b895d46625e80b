"""Processor time of one choice among many engines that are all ready, prompts known to some of them.

python benchmarks/fleet/choosing.py [--engines 8 64 256 10000]
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time

from simulation.channel import Channel, Process
from simulation.engine import Speed

from enginewire import v1 as pb
from enginewire.backend.engines.connection.client import EngineClient
from enginewire.backend.engines.endpoints import Endpoints

NUM_PROMPTS, NUM_BLOCKS = 50, 20


async def measure(num_engines: int) -> float:
    """Microseconds."""
    process = Process(0, Speed())
    engines = Endpoints(
        [EngineClient(f"sim:{i}", open_channel=lambda *_: Channel(process)) for i in range(num_engines)]
    )
    for each in engines.all:
        each.heard(
            pb.Load(
                state=pb.ENGINE_STATE_READY,
                running=random.randint(100, 140),
                kv_blocks_used=random.randint(1, 100),
                kv_blocks_total=200,
            )
        )
    prompts = [[random.getrandbits(60) for _ in range(NUM_BLOCKS)] for _ in range(NUM_PROMPTS)]
    for prompt in prompts:
        await engines.pick(0.0, prefix=prompt)
    count = max(20, 20_000 // num_engines)
    begin = time.thread_time()
    for number in range(count):
        await engines.pick(0.0, prefix=prompts[number % NUM_PROMPTS])
    return (time.thread_time() - begin) / count * 1e6


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--engines", type=int, nargs="*", default=[8, 64, 256, 10_000])
    random.seed(7)
    for num_engines in parser.parse_args().engines:
        print(f"{num_engines} engines: {asyncio.run(measure(num_engines)):.0f} us", flush=True)


if __name__ == "__main__":
    main()
