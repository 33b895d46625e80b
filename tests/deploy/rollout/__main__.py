"""The pods of deploy/kubernetes/sidecar as a cluster runs them: real processes, signals, probes and times.

    python -m tests.deploy.rollout [--only killed]

Each pod has a network of its own, and starts, is asked and ends as its manifest says; a mocker is in the
place of the model. A Service sends the connections of callers to the pods that are ready. An engine is
killed, all pods are replaced, and one ends with an answer that takes longer than it may. For each it prints
what became of the requests, and how long the pods took to end. The exit code is 1 when a request was lost,
a program was started again that should not be, or a pod had to be killed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Collection
from pathlib import Path

from tests.deploy.rollout.cluster import cluster
from tests.deploy.rollout.scenes import SCENES, Row
from tests.private_network import INSIDE, in_a_private_network


async def rehearse(names: Collection[str]) -> list[Row]:
    """The scenes of these names, one after the other."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="ew-") as folder:
        async with cluster(Path(folder)) as pods:
            for name in names:
                rows.append({"scene": name} | await SCENES[name](pods))
                print(json.dumps(rows[-1]), flush=True)
    return rows


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=SCENES, help="nothing but this")
    parser.add_argument(INSIDE, action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not options.inside:
        return in_a_private_network("tests.deploy.rollout", sys.argv[1:])
    rows = asyncio.run(rehearse([options.only] if options.only else SCENES))
    totals = {name: sum(row.get(name, 0) for row in rows) for name in ("lost", "killed", "wrong")}
    print(json.dumps({"scenes": len(rows)} | totals))
    return int(any(totals.values()))


if __name__ == "__main__":
    sys.exit(main())
