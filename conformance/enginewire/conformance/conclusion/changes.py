"""What became of the checks since an earlier run: its JSON report beside the one of now. Judges nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from enginewire.conformance.report.formats.as_json import SCHEMA
from enginewire.conformance.report.text import visible
from enginewire.conformance.running.outcome import FAILED, Report, Status

ABSENT: Final = "not there"


@dataclass(frozen=True, slots=True)
class Earlier:
    """An earlier report, as far as it matters: the status of each check by its key, and who made it."""

    kit: str
    revision: int
    statuses: Mapping[str, str]


def read(path: Path) -> Earlier:
    """The report that `--json` wrote into this file. Raises OSError, and ValueError for anything else."""
    document = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise ValueError(f"not a report of the form {SCHEMA}")
    try:
        statuses = {str(each["key"]): str(each["status"]) for each in document["outcomes"]}
        return Earlier(str(document["kit_version"]), int(document["contract_revision"]), statuses)
    except (KeyError, TypeError) as missing:
        raise ValueError(f"not a whole report: {missing!r}") from missing


def render(earlier: Earlier, report: Report) -> str:
    """What changed, what got worse first; a check that says the same as before is left out."""
    header = f"since the run of kit {earlier.kit}, revision {earlier.revision}:"
    return "\n".join([header, *(f"  {line}" for line in _lines(earlier, report))])


def _lines(earlier: Earlier, report: Report) -> Iterator[str]:
    now = {outcome.key: outcome.status.value for outcome in report.outcomes}
    keys = [key for key in (now | dict(earlier.statuses)) if now.get(key) != earlier.statuses.get(key)]
    if not keys:
        yield "nothing has changed"
    for key in sorted(keys, key=lambda key: (not _is_failure(now.get(key)), key)):
        yield visible(f"{key}: {earlier.statuses.get(key, ABSENT)} -> {now.get(key, ABSENT)}")


def _is_failure(status: str | None) -> bool:
    return status in {each.value for each in FAILED | {Status.ERROR}}
