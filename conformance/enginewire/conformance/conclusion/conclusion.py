"""What happens with a report: the baseline is applied, files are written, the verdict ends the program.

One place for all programs of the kit. Knows nothing about how a report came to be.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from enginewire.conformance.conclusion import baseline, changes
from enginewire.conformance.report import human
from enginewire.conformance.report.formats import as_badge, as_html, as_json, as_junit, as_markdown, as_tap
from enginewire.conformance.report.text import visible
from enginewire.conformance.running.outcome import ExitCode, Report
from enginewire.program import reader_may_leave

FORMATS: Final[dict[str, tuple[Callable[[Report], str], str]]] = {
    "json": (as_json.render, "for programs; docs/conformance.md describes it"),
    "junit": (as_junit.render, "for CI servers"),
    "tap": (as_tap.render, "TAP 14"),
    "markdown": (as_markdown.render, "for a step summary"),
    "html": (as_html.render, "one page for people"),
    "badge": (as_badge.render, "for a shields.io endpoint"),
}

STDOUT: Final = Path("-")


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options that say what to do with a report."""
    group = parser.add_argument_group("reports", "FILE may be - once, for the standard output")
    for name, (_, meaning) in FORMATS.items():
        group.add_argument(f"--{name}", type=Path, metavar="FILE", help=meaning)
    known = parser.add_argument_group("known failures")
    known.add_argument("--baseline", type=Path, metavar="FILE", help="what is known to fail, and why")
    known.add_argument("--update-baseline", action="store_true", help="write what fails now into that file")
    known.add_argument(
        "--changed-since", type=Path, metavar="FILE", help="say what changed since that run's --json report"
    )


def check_options(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """End the program with 2 when they contradict each other, before anything runs."""
    if [getattr(options, name) for name in FORMATS].count(STDOUT) > 1:
        parser.error("only one report can go to the standard output")
    if options.update_baseline and not options.baseline:
        parser.error("--update-baseline needs --baseline FILE")
    if options.baseline and (options.baseline.exists() or not options.update_baseline):
        try:
            baseline.read(options.baseline)
        except (OSError, ValueError) as mistake:
            parser.error(f"{options.baseline}: {mistake}")
    if options.changed_since:
        try:
            # Kept: the run may write its own report over that file.
            options.changed_since = changes.read(options.changed_since)
        except (OSError, ValueError) as mistake:
            parser.error(f"{options.changed_since}: {mistake}")


def conclude(report: Report, options: argparse.Namespace) -> ExitCode:
    """Print and write everything the options ask for."""
    report = finished(report, options)
    if not report.outcomes:
        print(f"enginewire-conformance: {visible(report.no_verdict)}", file=sys.stderr)
        return report.exit_code()
    # A report for a program must be alone on the standard output.
    is_taken = STDOUT in [getattr(options, name) for name in FORMATS]
    stream = sys.stderr if is_taken else sys.stdout
    with reader_may_leave():
        print(human.render(report, traced=options.trace), file=stream)
        if options.changed_since and not report.cut_short:
            print(changes.render(options.changed_since, report), file=stream)
    return report.exit_code()


def finished(report: Report, options: argparse.Namespace) -> Report:
    """The report as the options want it judged, written into the files they name."""
    report = _with_baseline(replace(report, strict=options.strict), options)
    _write(report, options)
    return report


def _with_baseline(report: Report, options: argparse.Namespace) -> Report:
    path = options.baseline
    if not path:
        return report
    if options.update_baseline and not report.cut_short:
        kept = baseline.read(path) if path.exists() else ()
        path.write_text(baseline.text(baseline.updated(kept, report)), encoding="utf-8")
    return baseline.applied(baseline.read(path), report)


def _write(report: Report, options: argparse.Namespace) -> None:
    for name, (render, _) in FORMATS.items():
        path = getattr(options, name)
        if path == STDOUT:
            with reader_may_leave():
                sys.stdout.write(render(report))
        elif path:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(render(report), encoding="utf-8")
