"""Keeps the tables of docs/conformance.md equal to the requirements and to the proof of the kit.

`python -m enginewire.conformance.proof.docs docs/conformance.md` rewrites what stands between
`<!-- requirements -->` and `<!-- end -->`. With `--proof FILE...`, the outputs of `self-test --json`, whole
or by shards, it rewrites `<!-- proof -->` too.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from enginewire.conformance.report.verdict import AREAS
from enginewire.conformance.requirements.requirement import Requirement, requirements

Row = Iterable[object]


@dataclass(frozen=True, slots=True)
class Proof:
    """What `self-test` found. `kills` and `expected`: the keys that failed and should fail, by mutant."""

    checks: int
    exact_kills: int
    unkilled: tuple[str, ...]
    alive: tuple[str, ...]
    adversary_passes: int
    seconds: float
    kills: dict[str, list[str]]
    expected: dict[str, list[str]]
    second_order: int = 0
    second_order_kills: int = 0
    survivors: tuple[str, ...] = ()
    """Of the second order."""


def filled(page: str, proof: Proof | None = None) -> str:
    """The page with the requirements as they are now, and with the proof when there is one."""
    page = _replaced(page, "requirements", requirement_tables(requirements().values()))
    return _replaced(page, "proof", proof_table(proof)) if proof else page


def requirement_tables(all_requirements: Iterable[Requirement]) -> str:
    """A heading and a table per area."""
    areas: dict[str, list[Requirement]] = {}
    for requirement in all_requirements:
        areas.setdefault(requirement.id[:3], []).append(requirement)
    return "\n".join("\n".join(_area(area, found)) for area, found in areas.items())


def proof_table(proof: Proof) -> str:
    """One sentence with the totals, and a table by area."""
    head = ("area", "requirements", "mutants", "exact kills")
    rows = [(area, *numbers) for area, *numbers in _by_area(proof)]
    adversaries = f"the servers that are no engine pass {proof.adversary_passes} checks"
    totals = (
        f"{proof.checks} checks, {len(proof.kills)} mutants, {proof.exact_kills} of them exact kills; "
        f"{adversaries}; {proof.seconds:.0f} s on the machine that wrote this."
    )
    gaps = [f"Checks that no mutant fails: {', '.join(proof.unkilled) or 'none'}."]
    gaps += [f"Mutants that live: {', '.join(proof.alive)}."] if proof.alive else []
    gaps += list(_second_order(proof))
    return "\n".join([totals, *gaps, "", *_table(head, rows), ""])


def read_proof(output: str) -> Proof:
    """The proof from the last line that `self-test --json` printed."""
    summary = json.loads(output.strip().splitlines()[-1])
    return Proof(
        checks=summary["checks"],
        exact_kills=summary["exact_kills"],
        unkilled=tuple(summary["unkilled_checks"]),
        alive=tuple(summary["alive"]),
        adversary_passes=sum(summary["adversary_passes"].values()),
        seconds=summary["seconds"],
        kills=summary["kills"],
        expected=summary["expected"],
        second_order=summary.get("second_order_mutants", 0),
        second_order_kills=summary.get("second_order_kills", 0),
        survivors=tuple(summary.get("second_order_survivors", ())),
    )


def joined(shards: Sequence[Proof]) -> Proof:
    """One proof of all of them. ValueError where two have the same mutant."""
    mutants = [name for shard in shards for name in shard.kills]
    if twice := [name for name, times in Counter(mutants).items() if times > 1]:
        raise ValueError(f"in more than one proof: {', '.join(twice)}")
    return Proof(
        checks=max(shard.checks for shard in shards),
        exact_kills=sum(shard.exact_kills for shard in shards),
        unkilled=tuple(sorted(set.intersection(*(set(shard.unkilled) for shard in shards)))),
        alive=tuple(sorted(name for shard in shards for name in shard.alive)),
        adversary_passes=sum(shard.adversary_passes for shard in shards),
        seconds=sum(shard.seconds for shard in shards),
        kills={name: kills for shard in shards for name, kills in shard.kills.items()},
        expected={name: kills for shard in shards for name, kills in shard.expected.items()},
        second_order=sum(shard.second_order for shard in shards),
        second_order_kills=sum(shard.second_order_kills for shard in shards),
        survivors=tuple(sorted(name for shard in shards for name in shard.survivors)),
    )


def _second_order(proof: Proof) -> Iterator[str]:
    if proof.second_order:
        killed = f"{proof.second_order_kills} of them killed"
        yield f"{proof.second_order} second-order mutants were drawn, {killed}."
    if proof.survivors:
        yield f"Of those live: {', '.join(f'`{name}`' for name in proof.survivors)}."


def _by_area(proof: Proof) -> Iterator[tuple[str, int, int, int]]:
    wanted = Counter(requirement.id[:3] for requirement in requirements().values())
    made, exact = Counter[str](), Counter[str]()
    for name, keys in proof.expected.items():
        made[keys[0][:3]] += 1
        exact[keys[0][:3]] += set(keys) == set(proof.kills[name])
    for area, number in wanted.items():
        yield f"{area} {AREAS.get(area, '')}", number, made[area], exact[area]


def _area(area: str, found: Sequence[Requirement]) -> Iterator[str]:
    yield f"### {AREAS.get(area, area)}"
    yield ""
    yield from _table(("id", "level", "applies to", "sentence", "proved by"), map(_row, found))
    yield ""


def _row(requirement: Requirement) -> Row:
    link = f"[{requirement.id}](contract.md#{requirement.anchor})"
    gate = "all" if requirement.gate == "core" else f"`{requirement.gate}`"
    return link, requirement.level, gate, requirement.text.replace("|", "\\|"), _proof(requirement)


def _proof(requirement: Requirement) -> str:
    if requirement.excluded:
        return f"not judged: {requirement.excluded}"
    if not requirement.checks:
        return "no check yet"
    return ", ".join(f"`{name}`" for name in requirement.mutants) or "no mutant yet"


def _table(head: Row, rows: Iterable[Row]) -> Iterator[str]:
    head = tuple(head)
    for row in (head, ("---",) * len(head), *rows):
        yield f"| {' | '.join(map(str, row))} |"


def _replaced(page: str, name: str, content: str) -> str:
    section = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.DOTALL)
    if not section.search(page):
        raise ValueError(f"the page has no section <!-- {name} -->")
    return section.sub(lambda found: f"{found[1]}{content}{found[2]}", page)


def main() -> None:
    """Rewrite the page."""
    parser = argparse.ArgumentParser(prog="python -m enginewire.conformance.proof.docs", description=__doc__)
    parser.add_argument("page", type=Path)
    parser.add_argument("--proof", type=Path, nargs="+", metavar="FILE", help="what self-test --json printed")
    options = parser.parse_args()
    shards = [read_proof(file.read_text(encoding="utf-8")) for file in options.proof or ()]
    page = filled(options.page.read_text(encoding="utf-8"), joined(shards) if shards else None)
    options.page.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
