"""Every requirement of docs/contract.md has one id, and every id one requirement."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from tests.docs.contract_page import DOCS, blocks, sentences

DEMAND = re.compile(r"\b(MUST|SHOULD)\b")
LABEL = re.compile(r"^- \[(?P<id>[A-Z]{3}-\d\d)\] (\*\((?P<gate>\w+)\)\* )?")


@dataclass(frozen=True, slots=True)
class Requirement:
    """A line of the list of ids, or the label of a block on the page."""

    id: str
    level: str
    gate: str


def listed() -> list[Requirement]:
    lines = (DOCS / "requirement_ids.txt").read_text().splitlines()
    return [Requirement(*line.split()) for line in lines]


def written() -> list[Requirement]:
    found = []
    for block in blocks():
        if label := LABEL.match(block):
            levels = set(DEMAND.findall(sentences(block)[0]))
            found.append(Requirement(label["id"], "/".join(sorted(levels)), label["gate"] or "core"))
    return found


def test_every_id_names_exactly_one_requirement() -> None:
    counts = Counter(requirement.id for requirement in written())
    assert [name for name, count in counts.items() if count > 1] == []


def test_the_page_has_the_listed_requirements_with_their_levels_and_gates() -> None:
    assert set(written()) == set(listed())


def test_the_list_has_no_id_twice() -> None:
    ids = [requirement.id for requirement in listed()]
    assert len(ids) == len(set(ids))


def test_every_sentence_that_demands_something_carries_an_id() -> None:
    unlabelled = [
        sentence
        for block in blocks()
        for number, sentence in enumerate(sentences(block))
        if DEMAND.search(sentence) and not (number == 0 and LABEL.match(block))
    ]
    assert unlabelled == []


def test_a_labelled_block_is_one_sentence() -> None:
    long = [block for block in blocks() if LABEL.match(block) and len(sentences(block)) != 1]
    assert long == []


def test_ids_mentioned_elsewhere_exist() -> None:
    known = {requirement.id for requirement in listed()}
    mentioned = {name for block in blocks() for name in re.findall(r"\b[A-Z]{3}-\d\d\b", block)}
    assert mentioned <= known
