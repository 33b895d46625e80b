"""Break engines under load for a while, and say what callers noticed: `make chaos`, `make soak`.

    python -m tests.chaos [--seconds 100] [--kills 1000] [--seed 1] [--callers 12] [--engines 3]
        [--per-request] [--only kill] [--schedules 10]

Callers ask one thing after the other through a backend; some leave in the middle. Engines are killed,
frozen, drained and started again, their connections are cut, reset, half closed, stalled, delayed, and
their bytes dropped, doubled and falsified. Certificates change all the while. Every answer is compared
with that of an undisturbed engine. The last line is JSON. `lost`, `duplicated` and `changed` count
streams, and the exit code is 1 if there is any.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from hypothesis import HealthCheck, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from enginewire.program import event_loop
from tests.chaos.history import FAULTS as FAULTS_OF_STREAMS, reasons
from tests.chaos.machine import Stage, Trouble
from tests.chaos.world import FAULTS, World, world

# Every second fault is a kill.
SHARE_OF_KILLS = 0.5
SHARE_OF_LEAVERS = 0.1
ROTATION_SECONDS = 1.0
STEPS = 15


async def keep_asking(world: World, dice: random.Random) -> None:
    """One caller, until it is cancelled."""
    while True:
        record = world.ask(dice.randrange(world.num_kinds))
        if dice.random() < SHARE_OF_LEAVERS:
            await asyncio.wait([record.task], timeout=dice.random() * 0.3)
            await world.leave(record)
        else:
            await asyncio.wait([record.task])
        world.judge(record)


async def keep_rotating(world: World) -> None:
    """New certificates, again and again."""
    while True:
        await asyncio.sleep(ROTATION_SECONDS)
        world.certificates.rotate()


async def break_things(world: World, options: argparse.Namespace) -> None:
    """One fault after the other, until the time is over or there were enough kills."""
    dice, end = random.Random(options.seed), time.monotonic() + options.seconds
    while time.monotonic() < end and world.faults["kill"] < options.kills:
        fault = "kill" if dice.random() < SHARE_OF_KILLS else dice.choice(FAULTS)
        engine = dice.choice(world.engines)
        await world.strike(options.only or fault, engine, dice)
        # One that hit nobody was over at once, and callers have to begin.
        await asyncio.sleep(0)


async def run(options: argparse.Namespace) -> tuple[dict[str, int], list[str]]:
    """The whole run: what there is to say about it, and why something is wrong with streams."""
    with tempfile.TemporaryDirectory(prefix="ew-") as folder:
        async with world(Path(folder), options.engines, multiplexed=not options.per_request) as made:
            callers = [
                asyncio.create_task(keep_asking(made, random.Random(options.seed * 1000 + number)))
                for number in range(options.callers)
            ]
            rotating = asyncio.create_task(keep_rotating(made))
            await break_things(made, options)
            for task in (*callers, rotating):
                task.cancel()
            await asyncio.gather(*callers, rotating, return_exceptions=True)
            await made.all_have_ended()
            await made.is_idle()
            report(made, options)
            verdict = {**made.verdict(), "rotations": made.certificates.num_rotations}
            return verdict, reasons(made.records)


def try_schedules(count: int, number: int) -> dict[str, int]:
    """Faults in any order. Raises what is wrong with an answer, behind the schedule that led to it."""
    with Stage() as stage:
        Trouble.stage = stage
        run_state_machine_as_test(
            seed(number)(Trouble),
            settings=settings(
                max_examples=count,
                stateful_step_count=STEPS,
                database=None,
                deadline=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
        print(
            f"{stage.num_schedules} schedules: {stage.world.num_migrations} answers went on at another engine"
        )
        return stage.world.verdict()


def report(made: World, options: argparse.Namespace) -> None:
    """Which faults there were, and every request that something is wrong with."""
    done = ", ".join(f"{count} × {name}" for name, count in made.faults.most_common())
    print(f"seed {options.seed}: {done}; {made.num_migrations} answers went on at another engine")
    for number, record in enumerate(made.records):
        if record.fault:
            print(f"{record.fault}: request {number}: {json.dumps(record.as_json())[:2000]}")


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=100.0)
    parser.add_argument("--kills", type=int, default=10**9, help="end after so many")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--callers", type=int, default=12)
    parser.add_argument("--engines", type=int, default=3)
    parser.add_argument("--per-request", action="store_true", help="a Generate call for each request")
    parser.add_argument("--only", choices=FAULTS, help="nothing but this fault")
    parser.add_argument("--schedules", type=int, default=0, help="then try so many that hypothesis draws")
    options = parser.parse_args()
    found, why = event_loop.run(run(options))
    verdict = Counter(found)
    if options.schedules:
        verdict.update(try_schedules(options.schedules, options.seed))
    # Once more at the end, which is what is left of a long log.
    print(*why, json.dumps(verdict), sep="\n")
    return int(any(verdict[fault] for fault in FAULTS_OF_STREAMS))


if __name__ == "__main__":
    sys.exit(main())
