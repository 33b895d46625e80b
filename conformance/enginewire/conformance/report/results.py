"""`python -m enginewire.conformance.report.results FILE...`: JSON reports as one table in Markdown."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from enginewire.conformance.report.formats.as_json import SCHEMA
from enginewire.conformance.report.text import visible

HEADER: Final = (
    "| server | level | capabilities | passed | refused as it must | failed | kit | revision |\n"
    "|---|---|---|---|---|---|---|---|"
)
FAILURES: Final = ("FAIL", "XPASS", "FLAKY", "ERROR")


def table(reports: Mapping[str, Mapping[str, Any]]) -> str:
    """A row for each report, by the name that it is given. Raises ValueError for what is no report."""
    return "\n".join([HEADER, *(_row(name, report) for name, report in reports.items())]) + "\n"


def _row(name: str, report: Mapping[str, Any]) -> str:
    if report.get("schema") != SCHEMA:
        raise ValueError(f"{name} is not a report of the form {SCHEMA}")
    counts = report["counts"]
    cells = (
        name,
        _level(report["standing"]),
        ", ".join(f"`{each}`" for each in report["standing"]["capabilities"]) or "none",
        counts.get("PASS", 0),
        counts.get("NEG-PASS", 0),
        sum(counts.get(status, 0) for status in FAILURES),
        report["kit_version"],
        report["contract_revision"],
    )
    return "| " + " | ".join(visible(str(cell)).replace("|", "\\|") for cell in cells) + " |"


def _level(standing: Mapping[str, Any]) -> str:
    level = str(standing["profile"] or standing["level"])
    needs_launch = any("--launch" in each["reason"] for each in standing["not_judged"])
    return f"{level}, except what needs `--launch`" if needs_launch else level


def _read(paths: Sequence[str]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for path in map(Path, paths):
        yield path.stem, json.loads(path.read_text(encoding="utf-8"))


if __name__ == "__main__":
    sys.stdout.write(table(dict(_read(sys.argv[1:]))))
