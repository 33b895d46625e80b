"""`enginewire-conformance client`: judge a backend, in any language."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from dataclasses import replace

from enginewire.conformance.client_side.checks import DRAWN
from enginewire.conformance.client_side.judge import judge
from enginewire.conformance.client_side.oracle.findings import cases
from enginewire.conformance.client_side.run_options import (
    add_options as add_run_options,
    run_options,
    words as words_of,
)
from enginewire.conformance.client_side.stage.backends import CommandStarter
from enginewire.conformance.conclusion.conclusion import add_options, check_options
from enginewire.conformance.options import globs, positive, scale
from enginewire.conformance.running.interruption import Interrupted, Interruption
from enginewire.conformance.running.outcome import Report
from enginewire.conformance.running.selection import Selection
from enginewire.conformance.session.session import Unreachable


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The options; a mistake ends the program with 2."""
    parser = argparse.ArgumentParser(
        prog="enginewire-conformance client",
        description="Judge a backend: the kit plays the engine, and asks the backend over BackendService.",
        epilog="Exit codes as without a subcommand.",
    )
    parser.add_argument(
        "--command",
        metavar="COMMAND",
        help="starts the backend; {target} is the engine's address, {listen} (host:port), {port} or {socket} "
        "where BackendService has to listen",
    )
    parser.add_argument("--run", action="append", default=[], metavar="GLOBS", help="only these ids")
    parser.add_argument("--skip", action="append", default=[], metavar="GLOBS", help="leave these ids out")
    parser.add_argument("--repeat", type=positive, default=1, metavar="N", help="run each check N times")
    parser.add_argument("--list", action="store_true", help="list the requirements and exit")
    parser.add_argument(
        "--multiplexed", action="store_true", help="the engine offers GenerateMultiplexed beside Generate"
    )
    parser.add_argument("--ready-timeout", type=float, default=60.0, metavar="S", help="until it listens")
    parser.add_argument("--time-scale", type=scale, default=1.0, metavar="X", help="multiplies every bound")
    parser.add_argument("--strict", action="store_true", help="a SHOULD that does not hold is a failure")
    parser.add_argument("--trace", action="store_true", help="show every call of what is unexpected")
    add_run_options(parser)
    add_options(parser)
    options = parser.parse_args(argv)
    check_options(parser, options)
    if options.case:
        options.run = options.run or [f"*/{DRAWN}"]
        _check_case(parser, options)
    if not (options.command or options.list):
        parser.error("one of --command and --list is needed")
    return options


def _check_case(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    try:
        cases(run_options(options))
    except ValueError as reason:
        parser.error(f"--case: {reason}")


async def judge_as_asked(options: argparse.Namespace, interruption: Interruption) -> Report:
    """What the options ask for, a backend that never listens included.

    Raises ValueError for a command without an address.
    """
    starter = CommandStarter(options.command, options.ready_timeout)
    interruption.at_once.append(starter.kill)
    empty = Report(target=options.command, invocation=_invocation(options))
    try:
        return await judge(
            starter,
            Selection(run=globs(options.run), skip=globs(options.skip), repeat=options.repeat),
            name=options.command,
            invocation=_invocation(options),
            time_scale=options.time_scale,
            multiplexed=options.multiplexed,
            options=run_options(options),
            interruption=interruption,
        )
    except Unreachable as reason:
        return replace(empty, unreachable=str(reason))
    except Interrupted as early:
        return replace(empty, cut_short=early.why)


def _invocation(options: argparse.Namespace) -> str:
    words = ["client", "--command", options.command]
    words += ["--multiplexed"] if options.multiplexed else []
    return shlex.join([*words, *words_of(options)])
