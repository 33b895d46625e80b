"""Send every server everything: `make fuzz CASES=20000`.

    python -m tests.fuzz [--cases 20000] [--seed 1] [--only NAME] [--again 'SERVER METHOD HEX']

Hypothesis draws messages for every RPC, bodies for every HTTP route, and bytes for every port, and sends
them to an engine and a backend that run as processes. No call may end with UNKNOWN or INTERNAL, no route
with a 5xx that is not about load, no process may end, and nothing may be left behind. What breaks that is
made as small as it gets and printed. The last line is JSON; the exit code is 1 if anything was found.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import grpc
from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings, strategies as st

from tests.fuzz import ports, routes
from tests.fuzz.messages import tells_too_much
from tests.fuzz.rpcs import Call, Rpc, calls, code_of, made_again, rpcs
from tests.fuzz.servers import Servers

FINDINGS = ("unknown", "internal", "deaths", "leaks")
ROUND = 100


@dataclass
class Target:
    """Something that takes cases, at every server that has it: to draw one costs more than to send it.

    `send` returns what is wrong: one of FINDINGS, or nothing, and why.
    """

    name: str
    servers: Sequence[str]
    cases: st.SearchStrategy[object]
    send: Callable[[str, object], tuple[str, str]]
    weight: int = 1
    sent: int = 0


class Found(AssertionError):
    """A case that shows a fault."""


@dataclass
class Fuzz:
    """One run."""

    servers: Servers
    counts: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)

    def targets(self) -> list[Target]:
        """Every RPC, every route, every port."""
        found = []
        for name, group in itertools.groupby(sorted(rpcs(), key=_name), _name):
            rpc, *others = group
            servers = [each.server for each in (rpc, *others)]
            weight = 3 if "Generate" in name else 1
            found.append(Target(name, servers, calls(rpc), self._call, weight))
        for route in routes.ROUTES:
            name, weight = f"{route.method} {route.path}", 2 if route.body else 1
            found.append(Target(name, [self.servers.http], routes.requests(route), routes.send, weight))
        addresses = [*self.servers.targets.values(), self.servers.http, self.servers.metrics]
        found.append(Target("bytes", addresses, ports.conversations(), ports.send, weight=2))
        return found

    def _call(self, server: str, call: Call) -> tuple[str, str]:
        code, why = code_of(self.servers.channels[server], call)
        if code is grpc.StatusCode.DEADLINE_EXCEEDED and "grpc-timeout" not in dict(call.metadata):
            return "internal", f"hangs: {why}"
        if tells_too_much(why):
            return "internal", f"tells too much: {why}"
        wrong = {grpc.StatusCode.UNKNOWN: "unknown", grpc.StatusCode.INTERNAL: "internal"}
        return wrong.get(code, ""), why if code in wrong else code.name

    def try_target(self, target: Target, cases: int, number: int) -> None:
        """So many cases; what is found is counted once and printed as small as it gets."""
        is_shrinking = False

        def check(case: object) -> None:
            nonlocal is_shrinking
            for server in target.servers:
                if not is_shrinking:
                    target.sent += 1
                finding, why = target.send(server, case)
                if not finding:
                    self.ends[why] += 1
                if not self.servers.are_alive:
                    finding, why = "deaths", "a process has ended"
                if finding:
                    is_shrinking = True
                    self.last = finding
                    shown = case.at(server) if isinstance(case, Call) else case
                    raise Found(f"{finding} at {target.name} of {server}: {why[:1000]}\n  {shown!r}")

        run = settings(
            max_examples=cases,
            database=None,
            deadline=None,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
            verbosity=Verbosity.normal,
            print_blob=False,
            report_multiple_bugs=False,
        )(seed(number)(given(target.cases)(check)))
        try:
            run()
        except Found as found:
            self.counts[self.last] += 1
            print(f"FOUND {found}", flush=True)

    def run(self, cases: int, number: int, only: str) -> None:
        """All targets in turn, until there were so many cases."""
        targets = [target for target in self.targets() if only in target.name]
        weights = sum(target.weight * len(target.servers) for target in targets)
        per_weight = max(1, min(ROUND, cases // max(1, weights)))
        while sum(target.sent for target in targets) < cases and self.servers.are_alive:
            number += 1
            self.servers.renew_ending()
            for target in targets:
                left = cases - sum(each.sent for each in targets)
                if left > 0:
                    most = -(-left // len(target.servers))
                    self.try_target(target, min(most, per_weight * target.weight), number)
            print(f"{sum(target.sent for target in targets)} of {cases} cases", flush=True)
        self.counts["cases"] += sum(target.sent for target in targets)


def _name(rpc: Rpc) -> str:
    return rpc.name


def run(options: argparse.Namespace) -> dict[str, int]:
    """What there is to say in the end."""
    with tempfile.TemporaryDirectory(prefix="ew-") as folder:
        with Servers(Path(folder)) as servers:
            fuzz = Fuzz(servers)
            if options.again:
                print(code_of(servers.channels[options.again.split(" ")[0]], made_again(options.again)))
                return dict.fromkeys(("cases", *FINDINGS), 0)
            print(f"seed {options.seed}: {len(fuzz.targets())} targets", flush=True)
            fuzz.run(max(1, options.cases // 10), options.seed, options.only)
            before = servers.sizes()
            fuzz.run(options.cases - fuzz.counts["cases"], options.seed + 1000, options.only)
            print("ends:", ", ".join(f"{count} × {end}" for end, count in fuzz.ends.most_common(12)))
            if servers.are_alive:
                for leak in servers.leaks(before):
                    fuzz.counts["leaks"] += 1
                    print(f"FOUND leak: {leak}")
        for log in Path(folder).glob("*.log"):
            if tracebacks := log.read_text().count("Traceback"):
                print(f"{log.name}: {tracebacks} tracebacks; the first:")
                print(log.read_text().partition("Traceback")[2][:3000])
    return {name: fuzz.counts[name] for name in ("cases", *FINDINGS)}


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="targets with this in their name")
    parser.add_argument("--again", default="", help="make one printed call again")
    begin = time.monotonic()
    verdict = run(parser.parse_args())
    print(f"{time.monotonic() - begin:.0f} s")
    print(json.dumps(verdict))
    return int(any(verdict[finding] for finding in FINDINGS))


if __name__ == "__main__":
    sys.exit(main())
