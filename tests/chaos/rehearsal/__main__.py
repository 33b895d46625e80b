"""Backends, engines and callers in networks of their own, and answers over a cable that goes bad.

    python -m tests.chaos.rehearsal [--only pulled]

It gives itself a private network in which it may do everything, as root or where the kernel lets users
have one (`unshare --net`), and says so where it cannot. A backend has two engines, each behind a cable
(`cable.py`), and eight callers. For each fault of the cable to the first engine: how many answers went on
at the other one, how long callers waited for their next token at most, and whether all answers are those
of engines that nobody disturbed. Then the same without replay, and callers who vanish. The last line is
JSON; the exit code is 1 when an answer was lost or changed, or nothing was noticed within a minute.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path

from tests.chaos.rehearsal.cable import Cable
from tests.chaos.rehearsal.engines import FAULTS, Engines
from tests.chaos.rehearsal.outages import with_replay, without_replay
from tests.chaos.rehearsal.vanishing import CALLERS, call, vanishing
from tests.private_network import INSIDE, in_a_private_network


async def rehearse(only: str | None) -> list[dict[str, object]]:
    """All of it."""
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory(prefix="ew-") as name, ExitStack() as cables:
        folder = Path(name)
        engines = Engines([cables.enter_context(Cable(number)) for number in range(2)])
        to_caller = cables.enter_context(Cable(2))
        async with AsyncExitStack() as stack:
            for number in range(2):
                stack.push_async_callback(engines.kill, number)
                await engines.start(number)
            faults = [fault for fault in FAULTS if only in (None, fault)]
            if faults:
                rows += await with_replay(engines, folder, faults)
            for fault in ("pulled", "silent"):
                if only in (None, "replay"):
                    rows.append(await without_replay(engines, folder, fault))
        for caller in CALLERS:
            if only in (None, caller):
                rows.append(await vanishing(to_caller, folder, caller))
    return rows


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=(*FAULTS, "replay", *CALLERS), help="nothing but this fault")
    parser.add_argument(INSIDE, action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--call", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.call:
        call(*options.call)
    if not options.inside:
        return in_a_private_network("tests.chaos.rehearsal", sys.argv[1:])
    rows = asyncio.run(rehearse(options.only))
    wrong = sum(int(str(row["wrong"])) for row in rows)
    print(json.dumps({"faults": len(rows), "wrong": wrong}))
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
