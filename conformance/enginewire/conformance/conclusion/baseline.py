"""What a server is known to fail, and why: a file that its author keeps under version control.

One entry per line, in the form of requirements.yaml; a JSON list of the same objects does as well:

    - {"id": "LOG-04", "reason": "no top logprobs yet", "issue": "#12", "match": "two logprobs"}

A failure that an entry names is XFAIL. An entry that nothing needs any more is XPASS and fails the run,
so that the file never says more than is true. Knows nothing about how checks run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Final

from enginewire.conformance.requirements.requirement import PREFIX, requirements
from enginewire.conformance.running.outcome import Outcome, Report, Status

EXCUSABLE: Final = frozenset({Status.FAIL, Status.WARN})
"""Not FLAKY and not ERROR: neither says that something is known to fail."""

UNEXPLAINED: Final = "not explained yet"


@dataclass(frozen=True, slots=True)
class Entry:
    """`id`: a requirement or the key of one check. `match`: a regular expression the message contains."""

    id: str
    reason: str
    issue: str = ""
    match: str = ""

    def names(self, outcome: Outcome) -> bool:
        """True when the entry speaks of this check."""
        return self.id in (outcome.key, outcome.requirement.id)

    def excuses(self, outcome: Outcome) -> bool:
        """True when it is this failure that is known."""
        excusable = self.names(outcome) and outcome.status in EXCUSABLE
        return excusable and re.search(self.match, outcome.message) is not None

    @property
    def why(self) -> str:
        """The reason for a reader."""
        return f"{self.reason}, {self.issue}" if self.issue else self.reason


def read(path: Path) -> tuple[Entry, ...]:
    """The entries of a file. Raises ValueError that says what is wrong, and OSError."""
    content = path.read_text(encoding="utf-8").strip()
    if content.startswith("["):
        return tuple(_entry(found) for found in json.loads(content))
    lines = [line for line in content.splitlines() if line.strip() and not line.startswith("#")]
    return tuple(_entry(json.loads(line.removeprefix(PREFIX))) for line in lines)


def text(entries: Sequence[Entry]) -> str:
    """The content of a file."""
    lines = ({name: value for name, value in _fields(entry).items() if value} for entry in entries)
    return "".join(f"{PREFIX}{json.dumps(line, ensure_ascii=False)}\n" for line in lines)


def applied(entries: Sequence[Entry], report: Report) -> Report:
    """The report with what is known marked XFAIL, and with what is stale marked XPASS."""
    marked = [_marked(entries, outcome) for outcome in report.outcomes]
    for entry in entries:
        marked = _with_stale(entry, marked)
    return replace(report, outcomes=tuple(marked))


def updated(entries: Sequence[Entry], report: Report) -> tuple[Entry, ...]:
    """Entries for exactly what fails now; those that are still needed keep their words."""
    failing = [
        outcome for outcome in report.outcomes if report.fails(outcome) and outcome.status in EXCUSABLE
    ]
    kept = [
        entry
        for entry in entries
        if any(entry.excuses(outcome) for outcome in report.outcomes)
        or not _was_judged(entry, report.outcomes)
    ]
    new = [
        Entry(outcome.key, UNEXPLAINED, match=_pattern(outcome.message))
        for outcome in failing
        if not any(entry.excuses(outcome) for entry in kept)
    ]
    return tuple(sorted([*kept, *new], key=lambda entry: entry.id))


def _pattern(message: str) -> str:
    """Figures differ from run to run."""
    return re.sub(r"\d+", lambda _: r"\d+", re.escape(message))


def _marked(entries: Sequence[Entry], outcome: Outcome) -> Outcome:
    for entry in entries:
        if entry.excuses(outcome):
            return replace(outcome, status=Status.XFAIL, known=entry.why)
    return outcome


def _with_stale(entry: Entry, outcomes: list[Outcome]) -> list[Outcome]:
    """The first check that ran and that the entry says fails, when none of them failed."""
    named = [outcome for outcome in outcomes if entry.names(outcome)]
    if any(outcome.status is not Status.PASS for outcome in named if _is_judged(outcome)):
        return outcomes
    stale = next((outcome for outcome in named if outcome.status is Status.PASS), None)
    message = f"the baseline says that this fails ({entry.why}), and it passes: remove the entry"
    return [
        replace(outcome, status=Status.XPASS, message=message, known=entry.why)
        if outcome is stale
        else outcome
        for outcome in outcomes
    ]


def _was_judged(entry: Entry, outcomes: Sequence[Outcome]) -> bool:
    return any(_is_judged(outcome) for outcome in outcomes if entry.names(outcome))


def _is_judged(outcome: Outcome) -> bool:
    return outcome.status not in (Status.NOT_RUN, Status.BLOCKED, Status.NOT_APPLICABLE, Status.NEG_PASS)


def _entry(found: object) -> Entry:
    names = {field.name for field in fields(Entry)}
    if not isinstance(found, dict) or not {"id", "reason"} <= found.keys() <= names:
        raise ValueError(f"an entry has id and reason, perhaps issue and match: {found}")
    if not all(isinstance(value, str) for value in found.values()) or not found["reason"]:
        raise ValueError(f"every field is a text, and a reason is needed: {found}")
    if found["id"].partition("/")[0] not in requirements():
        raise ValueError(f"no requirement is called {found['id']}")
    try:
        re.compile(found.get("match", ""))
    except re.error as mistake:
        raise ValueError(f"match of {found['id']} is no regular expression: {mistake}") from None
    return Entry(**found)


def _fields(entry: Entry) -> dict[str, str]:
    return {field.name: getattr(entry, field.name) for field in fields(Entry)}
