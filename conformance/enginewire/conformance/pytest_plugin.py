"""The kit as a pytest plugin: `pytest --pyargs enginewire.conformance --engine-target ADDRESS`.

One item per requirement; the whole run happens once, before the first of them. Everything else is done
by the kit: this only shows what it found. It is loaded in every pytest run of an environment that has
the kit, so it loads nothing of the kit until it is asked to.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from _pytest._code.code import TerminalRepr

    from enginewire.conformance.running.outcome import Outcome, Report

FILE: Final = Path(__file__).with_name("requirements") / "requirements.yaml"


class ConformanceWarning(UserWarning):
    """A SHOULD that does not hold."""


class Broken(Exception):
    """A requirement does not hold; the text is the explanation for a human."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Where the engine is, and the kit's own options."""
    group = parser.getgroup("enginewire", "conformance to enginewire.v1")
    group.addoption("--engine-target", metavar="ADDRESS", help="judge the server at this address")
    group.addoption("--engine-launch", metavar="COMMAND", help="judge servers started with this command")
    group.addoption("--engine-options", metavar="OPTIONS", default="", help="for enginewire-conformance")


def pytest_configure(config: pytest.Config) -> None:
    """Refuse what would disturb the measurements."""
    if _is_asked(config) and getattr(config.option, "numprocesses", None):
        raise pytest.UsageError("the conformance kit runs its checks side by side itself: use -n 0")


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """The requirements are the tests."""
    if file_path != FILE or not _is_asked(parent.config):
        return None
    return Requirements.from_parent(parent, path=file_path, nodeid="conformance")


class Requirements(pytest.File):
    """All requirements, and the one run that judges them."""

    report: Report | None = None

    def collect(self) -> Iterator[pytest.Collector]:
        """The profiles."""
        from enginewire.conformance.requirements.requirement import requirements

        for profile in dict.fromkeys(requirement.profile for requirement in requirements().values()):
            yield Profile.from_parent(self, name=profile)

    def outcomes(self, identifier: str) -> Sequence[Outcome]:
        """What became of the checks of a requirement; runs everything when asked first."""
        if self.report is None:
            self.report = self._judge()
        return [found for found in self.report.outcomes if found.requirement.id == identifier]

    def _judge(self) -> Report:
        from enginewire.conformance import options as command_line
        from enginewire.conformance.conclusion.conclusion import finished
        from enginewire.conformance.judging import judge_as_asked
        from enginewire.conformance.report.text import visible
        from enginewire.conformance.running.outcome import ExitCode

        options = command_line.parse(_arguments(self.config))
        options.run = options.run or [item.name for item in self.session.items if isinstance(item, Item)]
        report = finished(asyncio.run(judge_as_asked(options)), options)
        if report.exit_code() in (ExitCode.UNREACHABLE, ExitCode.NOTHING_RAN):
            reason = visible(report.no_verdict)
            pytest.exit(f"enginewire-conformance: {reason}", returncode=report.exit_code())
        return report


class Profile(pytest.Collector):
    """The requirements of one profile."""

    def collect(self) -> Iterator[pytest.Item]:
        """One item per id."""
        from enginewire.conformance.requirements.requirement import requirements

        for requirement in requirements().values():
            if requirement.profile == self.name:
                yield Item.from_parent(self, name=requirement.id)


class Item(pytest.Item):
    """One requirement."""

    def runtest(self) -> None:
        """Say what the kit found. A requirement with several checks is as good as its worst."""
        requirements = self.getparent(Requirements)
        assert requirements is not None
        outcomes = requirements.outcomes(self.name)
        assert requirements.report is not None
        for outcome in outcomes:
            # Of what somebody else disturbed there is no verdict, and a run without one is no success.
            if requirements.report.fails(outcome) or outcome.is_disturbed:
                raise Broken(_explained(requirements.report, outcome))
        self._show_gentler(outcomes)

    def _show_gentler(self, outcomes: Sequence[Outcome]) -> None:
        by_status = {outcome.status.value: outcome for outcome in outcomes}
        if warned := by_status.get("WARN"):
            self.warn(ConformanceWarning(f"{warned.key}: {warned.message}"))
        if known := by_status.get("XFAIL"):
            pytest.xfail(known.known)
        if not {"PASS", "NEG-PASS", "WARN"} & by_status.keys():
            pytest.skip("; ".join(f"{outcome.status.value}: {outcome.message}" for outcome in outcomes))

    def repr_failure(
        self, excinfo: pytest.ExceptionInfo[BaseException], style: object = None
    ) -> str | TerminalRepr:
        """The explanation; a traceback of this file would help nobody."""
        return str(excinfo.value) if isinstance(excinfo.value, Broken) else super().repr_failure(excinfo)

    def reportinfo(self) -> tuple[Path, int, str]:
        """The line of the requirement, counted from 0, and how a failure is titled."""
        from enginewire.conformance.requirements.requirement import requirements

        comment_lines = 1
        return self.path, comment_lines + list(requirements()).index(self.name), self.name


def _is_asked(config: pytest.Config) -> bool:
    return bool(config.getoption("--engine-target") or config.getoption("--engine-launch"))


def _arguments(config: pytest.Config) -> list[str]:
    named = {name: config.getoption(f"--engine-{name}") for name in ("target", "launch")}
    given = [word for name, value in named.items() if value for word in (f"--{name}", value)]
    return [*given, *shlex.split(config.getoption("--engine-options"))]


def _explained(report: Report, outcome: Outcome) -> str:
    from enginewire.conformance.report.human import explained
    from enginewire.conformance.report.text import visible

    return "\n".join(visible(line) for line in explained(report, outcome))
