"""The proof of the kit: every mutant fails exactly the checks it should, the reference fails none.

Mutants run in worker processes, several at a time in each. Knows nothing about what they break.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from fnmatch import fnmatchcase
from typing import Final

from enginewire import v1 as pb
from enginewire.conformance.checks import all_checks
from enginewire.conformance.client_side.checks import client_checks
from enginewire.conformance.client_side.judge import judge as judge_client
from enginewire.conformance.client_side.mutants import client_mutants
from enginewire.conformance.client_side.reference.backend import ReferenceBackend
from enginewire.conformance.client_side.stage.backends import InProcessStarter
from enginewire.conformance.mutants import Mutant, mutants
from enginewire.conformance.options import globs
from enginewire.conformance.proof.matrix import Kill, line, show, show_reference, summary_of, verdict_of
from enginewire.conformance.proof.second_order import survey
from enginewire.conformance.proof.second_order.survey import Breadth
from enginewire.conformance.reference.adversaries import ADVERSARIES, Adversary
from enginewire.conformance.reference.capabilities.adapters import SOURCES
from enginewire.conformance.reference.server import Reference
from enginewire.conformance.reference.variants.handoffs import Decode
from enginewire.conformance.reference.variants.keyed import Keyed
from enginewire.conformance.reference.variants.on_tls import EXPIRED, OnTls
from enginewire.conformance.reference.variants.traced import Traced
from enginewire.conformance.report.text import visible
from enginewire.conformance.running.outcome import FAILED, Outcome, Report, Status
from enginewire.conformance.running.registry import SHAPE, Check, Phase
from enginewire.conformance.running.runner import Runner
from enginewire.conformance.running.selection import Selection
from enginewire.conformance.running.servers.in_process import InProcess, InProcessLauncher, Served
from enginewire.conformance.running.verdict import SEEN
from enginewire.conformance.session.run_options import COMPANIES, PAIR, PAIR_RUN, RunOptions
from enginewire.conformance.session.session import Session, Unreachable
from enginewire.conformance.wire.connection import Connection
from enginewire.conformance.wire.foreign.collector import Collector

TOGETHER: Final = 8
"""Servers at a time in one worker. Most of them wait most of the time, some for a whole bound."""

ADVERSARY_TIME_SCALE: Final = 0.2
"""None of them ever answers late: whoever waits, waits in vain."""

LOAD_SECONDS: Final = 0.6
"""How long a server that runs as a process pretends to load: long enough to be seen."""

KILLING: Final = FAILED | {Status.WARN}


def main(options: argparse.Namespace) -> int:
    """Run everything, print the matrix; 0 when every kill is exact and the references pass."""
    started = time.monotonic()
    part, parts = options.shard
    patterns = globs(options.run)
    chosen = [mutant for mutant in everything_broken() if _is_chosen(mutant, patterns)][part - 1 :: parts]
    is_whole = not options.run and parts == 1
    references = asyncio.run(_judge_references())
    for reference in references:
        show_reference(reference)
    print(f"{len(chosen)} mutants", flush=True)
    kills = _killed(chosen, options.workers, options.quick)
    passes = _adversary_passes() if not options.run and part == 1 else {}
    for name, count in passes.items():
        print(f"adversary {name:24} {count} PASS")
    summary = summary_of(kills, references, passes, time.monotonic() - started)
    wanted = survey.wanted(options, is_whole=is_whole)
    summary |= survey.survey(wanted, judge_at_times, options) if wanted else {}
    show(summary, is_whole=is_whole)
    if options.json:
        print(json.dumps(summary))
    return verdict_of(summary, is_whole=is_whole)


async def judge(
    make: Callable[[], Served],
    phases: frozenset[Phase],
    *,
    time_scale: float = 1.0,
    name: str = "",
    run: Sequence[str] = (),
    skip: Sequence[str] = (),
    companies: int = COMPANIES,
) -> Report:
    """The kit against a server in this process; `name`: of the mutant, for checks that start processes."""
    program = f"enginewire.conformance.mutants {name}" if name else "enginewire.conformance.reference"
    command = f"{sys.executable} -m {program} unix:{{socket}} --load-seconds {LOAD_SECONDS}"
    launcher = InProcessLauncher(make, command)
    served, collector = make(), await Collector.open("127.0.0.1:0")
    if isinstance(served, Traced):
        served.collector = collector.address
    server = await InProcess(served).start()
    try:
        if isinstance(served, Reference) and (half := served.other_half()):
            return await _judge_pair(served, server.target, half, companies)
        connection, gates = reached_by(served, server.target)
        session = Session(
            connection=connection,
            time_scale=time_scale,
            declared=frozenset({"launch", "keepalive"}) | gates,
            launcher=launcher,
            collector=collector if "tracing" in gates else None,
            options=RunOptions(
                adapters=SOURCES,
                metrics_url=getattr(served, "metrics_url", ""),
                companies=companies,
                keys=served.keys if isinstance(served, Keyed) else (),
                expired_certificate=EXPIRED,
            ),
        )
        selection = Selection(phases=phases, run=run, skip=skip, judges_again=not name)
        return await Runner(session, all_checks(), selection).run()
    finally:
        await server.stop()
        await launcher.close()
        await collector.close()


def reached_by(served: Served, target: str) -> tuple[Connection, frozenset[str]]:
    """How to reach what listens there, and what the kit has to be told of it."""
    if isinstance(served, Reference):
        return served.connection(target), served.gates
    return Connection(target=target), frozenset()


async def judge_backend(
    make: Callable[[str], Served],
    *,
    time_scale: float = 1.0,
    run: Sequence[str] = (),
    skip: Sequence[str] = (),
) -> Report:
    """The kit against a backend in this process, made for the engine at the address that `make` gets."""
    return await judge_client(InProcessStarter(make), Selection(run=run, skip=skip), time_scale=time_scale)


async def _judge_references() -> list[Report]:
    judgings = (
        judge(Reference, frozenset(Phase)),
        judge(Decode, frozenset(Phase)),
        judge(Keyed, frozenset({Phase.SAFE}), run=("SEC-*",)),
        judge(OnTls, frozenset({Phase.SAFE}), run=("TLS-*",)),
        judge(Traced, frozenset({Phase.SAFE, Phase.LOAD}), run=("MDT-02", "MDT-02/*", "TRC-*")),
        judge_backend(ReferenceBackend),
    )
    return await asyncio.gather(*map(reached, judgings))


def everything_broken() -> tuple[Mutant, ...]:
    """The mutants of both sides: engine servers and backends."""
    return (*mutants(), *client_mutants())


async def _judge_pair(served: Reference, target: str, half: type[Reference], companies: int) -> Report:
    """One half of a disaggregated pair beside a correct other half."""
    other = await InProcess(half()).start()
    is_prefill = served.config.role == pb.ENGINE_ROLE_PREFILL
    prefill, decode = (target, other.target) if is_prefill else (other.target, target)
    try:
        session = Session(
            connection=Connection(target=decode),
            declared=PAIR,
            options=RunOptions(prefill=prefill, companies=companies),
        )
        return await Runner(session, all_checks(), Selection(phases=frozenset(Phase), run=PAIR_RUN)).run()
    finally:
        await other.stop()


def phases_of(mutant: Mutant) -> frozenset[Phase]:
    """The phases that matter to a mutant: the safe ones, and those of the checks it fails or shows in."""
    shown = [*mutant.kills, *mutant.traffic]
    own = {check.phase for check in all_checks() if any(fnmatchcase(check.key, key) for key in shown)}
    return frozenset({Phase.SAFE, Phase.LOAD, *own})


def needed_by(mutant: Mutant) -> list[str]:
    """The areas a mutant breaks, and the ids without which their checks would not run."""
    areas = {key.split("-")[0] for key in mutant.kills}
    ids = set(mutant.traffic)
    ids |= {need for check in all_checks() if check.id.split("-")[0] in areas for need in check.needs}
    return sorted({f"{area}-*" for area in areas} | ids | set(SHAPE))


async def reached(judging: Awaitable[Report]) -> Report:
    """The report, also where nobody could connect: on a busy machine one server may miss its chance."""
    try:
        return await judging
    except Unreachable as reason:
        return Report(target="", invocation="", unreachable=str(reason))


async def judge_mutant(mutant: Mutant, *, quick: bool = False) -> Report:
    """The kit against one mutant, without what takes long and is not about it."""
    checks = (*all_checks(), *client_checks())
    shown = {*mutant.kills, *mutant.traffic}
    spared = _spared((check for check in checks if check.is_costly), shown)
    if issubclass(mutant.server, ReferenceBackend):
        return await judge_backend(mutant.server, skip=spared)
    run = needed_by(mutant) if quick else ()
    # What a mutant always does shows without company.
    phases = phases_of(mutant)
    return await judge(mutant.server, phases, name=mutant.name, run=run, skip=spared, companies=0)


async def judge_at_times(mutant: Mutant, breadth: Breadth) -> Report:
    """The kit against a second-order mutant: as against the first one, but for what starts programs.

    Mixes are asked as well where nothing simpler sees it: nobody said that it shows in one thing alone.
    """
    beside = () if breadth is Breadth.OWN else survey.BESIDE
    costly = (check for check in all_checks() if check.is_costly and check.variant not in beside)
    spared = _spared(costly, mutant.kills)
    everywhere = (f"*/{variant}" for variant in (survey.DRAWN, *beside))
    run = () if breadth is Breadth.ALL else [*needed_by(mutant), *everywhere]
    phases = phases_of(mutant) - {Phase.LAUNCH}
    companies = 0 if breadth is Breadth.OWN else COMPANIES
    return await reached(judge(mutant.server, phases, run=run, skip=spared, companies=companies))


def _spared(costly: Iterable[Check], shown: Iterable[str]) -> list[str]:
    """What is not judged: to leave out an id is to leave out its variants, so none with one that is shown."""
    wanted = {name for key in shown for name in (key, key.partition("/")[0])}
    return [check.key for check in costly if check.key not in wanted]


async def kill(mutant: Mutant, *, quick: bool = False) -> Kill:
    """What became of one mutant."""
    report = await reached(judge_mutant(mutant, quick=quick))
    found = [outcome for outcome in report.outcomes if outcome.status in KILLING]
    broken = [outcome for outcome in found if not is_in_passing(outcome.key, mutant)]
    faults = [
        f"{outcome.key}: {outcome.message}" for outcome in report.outcomes if outcome.status is Status.ERROR
    ]
    if report.unreachable:
        faults.append(report.unreachable)
    return Kill(
        name=mutant.name,
        expected=mutant.kills,
        failed=tuple(outcome.key for outcome in broken),
        faults=tuple(faults),
        seconds=report.seconds,
        surprises=tuple(map(_said, (outcome for outcome in broken if outcome.key not in mutant.kills))),
        in_passing=tuple(outcome.key for outcome in found if outcome not in broken),
    )


def is_in_passing(key: str, mutant: Mutant) -> bool:
    """True for what the monitor may say of a mutant: about the ids it breaks, and about those it names."""
    identifier, _, variant = key.partition("/")
    ids = {killed.partition("/")[0] for killed in mutant.kills}
    return variant == SEEN and key not in mutant.kills and (identifier in ids or key in mutant.also)


def kill_all(names: Sequence[str], quick: bool) -> list[Kill]:
    """The kit against some mutants, a few at a time: what one worker does. Tells of each at once."""
    return asyncio.run(_kill_all([mutant for mutant in everything_broken() if mutant.name in names], quick))


async def _kill_all(some: Iterable[Mutant], quick: bool) -> list[Kill]:
    slots = asyncio.Semaphore(TOGETHER)

    async def one(mutant: Mutant) -> Kill:
        async with slots:
            done = await kill(mutant, quick=quick)
        print("\n".join([line(done), *(f"      {surprise}" for surprise in done.surprises)]), flush=True)
        return done

    return list(await asyncio.gather(*(one(mutant) for mutant in some)))


def _killed(chosen: Sequence[Mutant], workers: int, quick: bool) -> list[Kill]:
    names = [mutant.name for mutant in chosen]
    if workers < 2:
        return kill_all(names, quick)
    # A fork would take the gRPC threads of this process with it.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        shares = pool.map(kill_all, [names[start::workers] for start in range(workers)], [quick] * workers)
        return sorted((kill for share in shares for kill in share), key=lambda kill: kill.name)


def _adversary_passes() -> dict[str, int]:
    async def count(name: str) -> int:
        judging = judge(lambda: Adversary(name), frozenset(Phase), time_scale=ADVERSARY_TIME_SCALE)
        return (await reached(judging)).counts[Status.PASS]

    async def count_as_backend(name: str) -> int:
        judging = judge_backend(lambda engine: Adversary(name), time_scale=ADVERSARY_TIME_SCALE)
        return (await judging).counts[Status.PASS]

    async def count_all() -> list[int]:
        counts = [*map(count, ADVERSARIES), *map(count_as_backend, ADVERSARIES)]
        return await asyncio.gather(*counts)

    names = [*ADVERSARIES, *(f"{name} as a backend" for name in ADVERSARIES)]
    return dict(zip(names, asyncio.run(count_all()), strict=True))


def _is_chosen(mutant: Mutant, patterns: Sequence[str]) -> bool:
    names = (mutant.name, *mutant.kills)
    return not patterns or any(fnmatchcase(name, pattern) for name in names for pattern in patterns)


def _said(outcome: Outcome) -> str:
    seen = f", seen: {outcome.seen}" if outcome.seen else ""
    return visible(f"{outcome.key}: {outcome.message}{seen} after {outcome.seconds:.1f} s")
