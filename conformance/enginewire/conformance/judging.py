"""The doors to the kit from Python: judge a server, or servers that the caller can start.

Each returns the Report that the command line's verdict comes from. Prints and writes nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypedDict, Unpack

from enginewire.conformance import options as command_line
from enginewire.conformance.checks import all_checks
from enginewire.conformance.conclusion import baseline as known_failures
from enginewire.conformance.report.progress import Progress
from enginewire.conformance.requirements.levels import NO_LEVEL
from enginewire.conformance.requirements.profiles import BARE
from enginewire.conformance.running.interruption import Interrupted, Interruption, Life
from enginewire.conformance.running.outcome import Report
from enginewire.conformance.running.registry import Phase
from enginewire.conformance.running.runner import Runner
from enginewire.conformance.running.selection import Selection
from enginewire.conformance.running.servers.launch import CommandLauncher
from enginewire.conformance.running.servers.log import with_log
from enginewire.conformance.session.run_options import CASES, COMPANIES, SEED, RunOptions, run_options
from enginewire.conformance.session.session import Launcher, Program, Server, Session, Unreachable
from enginewire.conformance.wire.connection import Connection, Tls
from enginewire.conformance.wire.exchange import Metadata
from enginewire.conformance.wire.foreign.collector import Collector

ServerFactory = Callable[[], AbstractAsyncContextManager[str]]
"""Starts a fresh server, yields its address as gRPC names it, ends the server."""


class Asked(TypedDict, total=False):
    """Options of the command line, by their names there, for whoever calls from Python."""

    profiles: Sequence[str]
    level: int
    run: Sequence[str]
    skip: Sequence[str]
    repeat: int
    strict: bool
    time_scale: float
    seed: int
    cases: int
    companies: int
    baseline: Path | None
    declare: Collection[str]


async def judge(
    target: str,
    *,
    allow_destructive: bool = False,
    tls: Tls | None = None,
    metadata: Metadata = (),
    **asked: Unpack[Asked],
) -> Report:
    """The kit against a server that runs.

    Raises Unreachable when nothing listens there, ValueError for a baseline that says nonsense and for more
    `companies` than there are.
    """
    phases = {Phase.SAFE, Phase.LOAD} | ({Phase.DESTRUCTIVE} if allow_destructive else set())
    connection = Connection(target=target, tls=tls, metadata=metadata)
    return await _report(_session(connection, asked), frozenset(phases), asked)


async def engine_conformance(server_factory: ServerFactory, **asked: Unpack[Asked]) -> Report:
    """The kit against servers that `server_factory` starts: each check that ends one gets its own.

    What needs a process to signal is left to `--launch`. Raises like `judge`.
    """
    launcher = FactoryLauncher(server_factory)
    phases = frozenset({Phase.SAFE, Phase.LOAD, Phase.DESTRUCTIVE})
    async with server_factory() as target:
        session = _session(Connection(target=target), asked, launcher)
        try:
            return await _report(session, phases, asked)
        finally:
            await launcher.close()


async def judge_as_asked(options: argparse.Namespace, interruption: Interruption | None = None) -> Report:
    """What the options of the command line ask for, a target that cannot be reached included.

    Raises ValueError for a command without an address, and for a collector's address that is in use.
    """
    launcher, interruption = _launcher(options), interruption or Interruption()
    empty = Report(target=options.target or options.launch, invocation=command_line.invocation(options))
    if launcher:
        interruption.at_once.append(launcher.kill)
    # It listens before anybody is started who looks for it.
    collector = await Collector.open(options.otlp_listen) if options.otlp_listen else None
    try:
        server = await interruption.unless_asked(launcher.launch()) if launcher else None
        life = Life(command_line.connection(options, server.target if server else options.target), server)
        report = await _run(options, life, launcher, interruption, collector)
        return _with_log(report, launcher) if launcher else report
    except Unreachable as reason:
        return replace(empty, unreachable=str(reason))
    except Interrupted as early:
        return replace(empty, cut_short=early.why)
    finally:
        if launcher:
            await launcher.close()
        if collector:
            await collector.close()


def _with_log(report: Report, launcher: CommandLauncher) -> Report:
    outcomes = tuple(with_log(outcome, launcher.lines_with) for outcome in report.outcomes)
    return replace(report, outcomes=outcomes)


def _launcher(options: argparse.Namespace) -> CommandLauncher | None:
    if not options.launch:
        return None
    return CommandLauncher(options.launch, options.ready_timeout, command_line.connection(options, ""))


async def _run(
    options: argparse.Namespace,
    life: Life,
    launcher: Launcher | None,
    interruption: Interruption,
    collector: Collector | None,
) -> Report:
    session = Session(
        connection=life.connection,
        time_scale=options.time_scale,
        declared=command_line.declared(options, life.connection),
        launcher=launcher,
        options=run_options(options),
        collector=collector,
    )
    selection, invocation = command_line.selection(options), command_line.invocation(options)
    async with Progress() as progress:
        return await Runner(
            session,
            all_checks(),
            selection,
            invocation,
            watch=progress,
            say=progress.say,
            interruption=interruption,
            life=life,
        ).run()


def _gates(declare: Collection[str], connection: Connection) -> frozenset[str]:
    return frozenset(declare) | ({"keepalive"} if connection.is_tcp else set())


def _session(connection: Connection, asked: Asked, launcher: Launcher | None = None) -> Session:
    if unknown := asked.keys() - Asked.__annotations__.keys():
        raise TypeError(f"there is no option {', '.join(sorted(unknown))}")
    return Session(
        connection=connection,
        time_scale=asked.get("time_scale", 1.0),
        declared=_gates(asked.get("declare", ()), connection),
        launcher=launcher,
        options=RunOptions(
            seed=asked.get("seed", SEED),
            cases=asked.get("cases", CASES),
            companies=asked.get("companies", COMPANIES),
            is_bare=BARE in asked.get("profiles", ()),
        ),
    )


async def _report(session: Session, phases: frozenset[Phase], asked: Asked) -> Report:
    baseline = asked.get("baseline")
    entries = known_failures.read(baseline) if baseline else ()
    selection = Selection(
        profiles=asked.get("profiles", ()),
        level=asked.get("level", NO_LEVEL),
        run=asked.get("run", ()),
        skip=asked.get("skip", ()),
        repeat=asked.get("repeat", 1),
        phases=phases,
    )
    report = await Runner(session, all_checks(), selection).run()
    return known_failures.applied(entries, replace(report, strict=asked.get("strict", False)))


@dataclass(slots=True)
class _Made:
    """A server that a factory started."""

    context: AbstractAsyncContextManager[str]
    target: str = ""

    async def stop(self) -> None:
        """End it."""
        await self.context.__aexit__(None, None, None)


@dataclass
class FactoryLauncher:
    """Starts servers by calling the user's factory."""

    factory: ServerFactory
    at_a_time: int = 1
    """Servers of the caller's own process would take its time from each other."""

    async def launch(self) -> Server:
        """A server that serves."""
        made = _Made(self.factory())
        made.target = await made.context.__aenter__()
        return made

    async def spawn(self, target: str = "", extra: str = "") -> Program:
        """There is no program behind a factory."""
        raise Unreachable("a server factory has no program to start: use --launch")

    async def close(self) -> None:
        """The runner stops what it launches."""
