"""Brings `requirements.yaml` up to date: sentences from docs/contract.md, names from the decorators.

For developers of the kit: it needs the repository around it. `excluded` is the only field kept from
the file; it is written there by hand.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from enginewire.conformance.checks import all_checks
from enginewire.conformance.client_side.checks import client_checks
from enginewire.conformance.client_side.mutants import client_mutants
from enginewire.conformance.mutants import mutants
from enginewire.conformance.requirements.requirement import FILE, Requirement, requirements

DOCS = Path(__file__).parents[4] / "docs"
COMMAND = "python -m enginewire.conformance.proof.requirements_writer --write"
HEAD = f"# Generated: {COMMAND}. Only `excluded` is written by hand.\n"

PROFILES = {
    "seed": "sampling",
    "penalties": "sampling",
    "logit_bias": "sampling",
    "prompt_logprobs": "logprobs",
    "multiple_choices": "choices",
    "kv_cache_block_size": "kv_blocks",
    "bootstrap_host": "disaggregation",
    "prefill": "disaggregation",
    "decode": "disaggregation",
    "guided_modes": "guided",
    "keys": "auth",
    "client_certificates": "tls",
    "launch": "lifecycle",
    "backend": "client",
}
"""Gates that share a profile with others or have a plainer name. Every other gate is its own profile."""

SINCE = {"EVT": 2, "RTG": 2}
"""The contract revision that brought an area; the others were there from the first one on."""

_HEADING = re.compile(r"^#+ (?P<title>.+)$")
_SENTENCE = re.compile(r"^- \[(?P<id>[A-Z]{3}-\d\d)\] (\*\((?P<gate>\w+)\)\* )?(?P<text>.+)$")


def sentences(page: str) -> Iterator[Requirement]:
    """The requirements of docs/contract.md, without checks and mutants."""
    anchor = ""
    for line in page.splitlines():
        if heading := _HEADING.match(line):
            anchor = re.sub(r"[^a-z0-9 -]", "", heading["title"].lower()).replace(" ", "-")
        elif found := _SENTENCE.match(line):
            gate = found["gate"] or "core"
            yield Requirement(
                id=found["id"],
                level="MUST" if "MUST" in found["text"] else "SHOULD",
                gate=gate,
                profile=PROFILES.get(gate, gate),
                anchor=anchor,
                since=SINCE.get(found["id"][:3], 1),
                text=found["text"],
            )


def current() -> list[Requirement]:
    """What the file should hold."""
    order = [line.split()[0] for line in (DOCS / "requirement_ids.txt").read_text().splitlines()]
    written = {requirement.id: requirement for requirement in sentences((DOCS / "contract.md").read_text())}
    return [_with_names(written[identifier]) for identifier in order]


def text() -> str:
    """The whole file as it should be."""
    return HEAD + "".join(f"{requirement.line()}\n" for requirement in current())


def main() -> None:
    """Write the file, or say whether it is current."""
    parser = argparse.ArgumentParser(prog="python -m enginewire.conformance.proof.requirements_writer")
    parser.add_argument("--write", action="store_true", help="bring the file up to date")
    if parser.parse_args().write:
        FILE.write_text(text(), encoding="utf-8")
    elif FILE.read_text(encoding="utf-8") != text():
        parser.exit(1, f"requirements.yaml is stale: run {COMMAND}\n")


def _with_names(requirement: Requirement) -> Requirement:
    checks, broken = (*all_checks(), *client_checks()), (*mutants(), *client_mutants())
    names = {check.name for check in checks if check.id == requirement.id}
    killers = {mutant.name for mutant in broken if requirement.id in {key[:6] for key in mutant.kills}}
    kept = requirements().get(requirement.id) if FILE.exists() else None
    return replace(
        requirement,
        checks=tuple(sorted(names)),
        mutants=tuple(sorted(killers)),
        excluded=kept.excluded if kept and not names else "",
    )


if __name__ == "__main__":
    main()
