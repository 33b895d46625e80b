"""The requirements of the contract as data, one line of `requirements.yaml` each.

The file is YAML in its JSON flow form, so reading it needs no YAML library. `python -m
enginewire.conformance.proof.requirements_writer --write` brings it up to date with docs/contract.md and the
decorators of checks and mutants. Knows nothing about running anything.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FILE = Path(__file__).with_name("requirements.yaml")
PREFIX = "- "


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """One sentence of docs/contract.md. `excluded` says why no check stands for it, else it is empty."""

    id: str
    level: str
    gate: str
    profile: str
    anchor: str
    since: int
    text: str
    checks: tuple[str, ...] = ()
    mutants: tuple[str, ...] = ()
    excluded: str = ""

    @property
    def is_must(self) -> bool:
        """False for a SHOULD, whose violation is a warning."""
        return self.level == "MUST"

    def line(self) -> str:
        """The requirement as its line of the file; empty fields are left out."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        shown = {name: value for name, value in fields.items() if value not in ("", ())}
        return PREFIX + json.dumps(shown, ensure_ascii=False)


def parse(line: str) -> Requirement:
    """The requirement on one line of the file."""
    fields = json.loads(line.removeprefix(PREFIX))
    for name in ("checks", "mutants"):
        fields[name] = tuple(fields.get(name, ()))
    return Requirement(**fields)


@cache
def requirements() -> dict[str, Requirement]:
    """All requirements by id, in the order of docs/requirement_ids.txt."""
    lines = FILE.read_text(encoding="utf-8").splitlines()
    found = [parse(line) for line in lines if line.startswith(PREFIX)]
    return {requirement.id: requirement for requirement in found}
