"""The other proof of the kit: a correct server passes every time, at any speed, on a busy machine.

Runs the kit again and again against the references in process, at five speeds in turn. Leaves out
what starts programs: there is none. Knows no check.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

from enginewire.conformance.client_side.reference.backend import ReferenceBackend
from enginewire.conformance.proof.self_test import judge, judge_backend, reached
from enginewire.conformance.reference.server import Reference
from enginewire.conformance.reference.variants.handoffs import Decode
from enginewire.conformance.report.human import explained
from enginewire.conformance.report.text import visible
from enginewire.conformance.report.verdict import tally
from enginewire.conformance.running.outcome import ExitCode, Report, Status
from enginewire.conformance.running.registry import Phase

SPEEDS: Final = (0.0, 0.0002, 0.001, 0.005, 0.02)
"""Seconds per token: from faster than any model to about as slow as a reader."""

PHASES: Final = frozenset(Phase) - {Phase.LAUNCH}
BUSY: Final = (sys.executable, "-c", "while True: pass")


@dataclass(frozen=True, slots=True)
class Run:
    """What one run of the kit against one reference said, as text: it comes from another process."""

    line: str
    verdicts: int
    evidence: dict[str, list[str]]
    """The lines about each verdict that is not that of a correct server."""
    not_judged: list[str]
    """What found nothing to judge: some checks do only now and then."""


def main(options: argparse.Namespace) -> int:
    """Run as often as asked; 0 when every verdict of every run is that of a correct server."""
    started, runs = time.monotonic(), list[Run]()
    # A fork would take the gRPC threads of this process with it.
    context = multiprocessing.get_context("spawn")
    speeds = [SPEEDS[number % len(SPEEDS)] for number in range(options.flakes)]
    with busy(options.busy), ProcessPoolExecutor(options.workers, mp_context=context) as pool:
        for done in as_completed([pool.submit(judge_once, speed, options.run) for speed in speeds]):
            for run in done.result():
                _show(run)
                runs.append(run)
    return _conclude(runs, options, time.monotonic() - started)


def judge_once(speed: float, only: Sequence[str] = ()) -> list[Run]:
    """All references once, at one speed; `only`: these checks."""
    return [_run(report, speed) for report in asyncio.run(references(speed, only))]


async def references(speed: float, run: Sequence[str] = ()) -> list[Report]:
    """The kit against all that is correct: a server, a backend, and a disaggregated pair if DIS is due."""
    reports = [
        await reached(judge(at_speed(Reference, speed), PHASES, run=run)),
        await reached(judge_backend(ReferenceBackend, run=run)),
    ]
    if not run or any(pattern.startswith("DIS") for pattern in run):
        reports.append(await reached(judge(at_speed(Decode, speed), PHASES)))
    return reports


def at_speed(reference: type[Reference], seconds: float) -> Callable[[], Reference]:
    """The same server with another time per token."""
    settings = replace(reference.settings, step_seconds=seconds)
    return type(reference.__name__, (reference,), {"settings": settings})


@contextmanager
def busy(processes: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """So many cores have something else to do: the processes that keep them busy."""
    others = [subprocess.Popen(BUSY) for _ in range(processes)]  # noqa: S603  # our own words
    try:
        yield others
    finally:
        for other in others:
            other.kill()
            other.wait()


def _run(report: Report, speed: float) -> Run:
    name = f"{speed * 1e3:g} ms per token"
    unexpected = report.unexpected
    evidence = {outcome.key: list(explained(report, outcome)) for outcome in unexpected}
    if report.unreachable:
        evidence["no verdict"] = [report.unreachable]
    return Run(
        line=f"{name}  {report.engine}: {tally(report)} in {report.seconds:.1f} s",
        verdicts=report.counts[Status.PASS] + len(unexpected),
        evidence=evidence,
        not_judged=[f"{each.key} at {name}: {each.message}" for each in report.without_verdict],
    )


def _show(run: Run) -> None:
    print(run.line, flush=True)
    for lines in run.evidence.values():
        for line in lines:
            print(f"  {visible(line)}", flush=True)


def _conclude(runs: Sequence[Run], options: argparse.Namespace, seconds: float) -> ExitCode:
    not_judged = Counter(reason for run in runs for reason in run.not_judged)
    for reason, times in sorted(not_judged.items()):
        print(f"nothing to judge in {times}: {reason}")
    unexpected = Counter(key for run in runs for key in run.evidence)
    for key, times in unexpected.most_common():
        print(f"unexpected in {times}: {key}")
    verdicts = sum(run.verdicts for run in runs)
    print(f"{unexpected.total()} of {verdicts} verdicts are not those of a correct server")
    print(f"{options.flakes} runs by {options.workers}, {options.busy} busy processes, {seconds:.0f} s")
    return ExitCode.VIOLATION if unexpected else ExitCode.CONFORMANT
