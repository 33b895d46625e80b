"""The `enginewire-conformance` command: judge a target, explain a requirement, prove the kit."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable, Coroutine, Iterable, Sequence
from pathlib import Path

from enginewire import v1 as pb
from enginewire.conformance import options as command_line
from enginewire.conformance.conclusion.conclusion import conclude
from enginewire.conformance.judging import judge_as_asked
from enginewire.conformance.requirements.levels import level_of
from enginewire.conformance.requirements.profiles import is_of_any
from enginewire.conformance.requirements.requirement import Requirement, requirements
from enginewire.conformance.running.interruption import Interruption
from enginewire.conformance.running.outcome import ExitCode, Report
from enginewire.program import program

Judging = Callable[[argparse.Namespace, Interruption], Coroutine[None, None, Report]]


@program
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["self-test"]:
        # Only developers of the kit need it: a run against a target does not load the reference.
        from enginewire.conformance.proof import flakes, self_test

        options = command_line.parse_self_test(arguments[1:])
        return flakes.main(options) if options.flakes else self_test.main(options)
    if arguments[:1] == ["client"]:
        from enginewire.conformance.client_side import command_line as client
        from enginewire.conformance.client_side.judge import due

        options = client.parse(arguments[1:])
        return _list(due()) if options.list else _judge(options, client.judge_as_asked)
    options = command_line.parse(arguments)
    if options.list:
        profiles = command_line.globs(options.profile)
        return _list(each for each in requirements().values() if is_of_any(each, profiles))
    if options.proto_path:
        return _print_proto_path()
    if options.explain:
        return _explain(options.explain)
    return _judge(options, judge_as_asked)


def _judge(options: argparse.Namespace, judge: Judging) -> int:
    try:
        report = asyncio.run(_listening(options, judge))
    except ValueError as mistake:
        print(f"enginewire-conformance: {mistake}", file=sys.stderr)
        return ExitCode.USAGE
    return conclude(report, options)


async def _listening(options: argparse.Namespace, judge: Judging) -> Report:
    interruption = Interruption()
    with interruption.listening():
        return await judge(options, interruption)


def _list(listed: Iterable[Requirement]) -> int:
    for requirement in listed:
        mark = "" if requirement.checks else "  (no check)"
        level = level_of(requirement) or "-"
        print(
            f"{requirement.id}  {requirement.level:6}  {level}  {requirement.profile:16}  "
            f"{requirement.text}{mark}"
        )
    return ExitCode.CONFORMANT


def _print_proto_path() -> int:
    """Wherever this was installed, tools such as grpcurl and protoc find the contract there."""
    print(Path(pb.__file__).parents[2])
    return ExitCode.CONFORMANT


def _explain(identifier: str) -> int:
    requirement = requirements().get(identifier.upper())
    if not requirement:
        print(f"enginewire-conformance: no requirement is called {identifier}", file=sys.stderr)
        return ExitCode.USAGE
    # It loads the reference and the mutants, which no run against a target needs.
    from enginewire.conformance.proof.explanation import explain

    print(explain(requirement))
    return ExitCode.CONFORMANT


if __name__ == "__main__":
    sys.exit(main())
