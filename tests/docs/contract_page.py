"""docs/contract.md as data: its blocks, sentences and tables. Knows nothing about what they say."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tests.repository import ROOT

DOCS = ROOT / "docs"
PAGE = (DOCS / "contract.md").read_text()

_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`\n]*`")


def blocks() -> Iterator[str]:
    """Paragraphs and list items, each on one line, without fenced code."""
    for paragraph in re.split(r"\n\s*\n", _FENCE.sub("", PAGE)):
        for block in re.split(r"\n(?=- |\d+\. |\| |#)", paragraph.strip()):
            yield " ".join(block.split())


def sentences(block: str) -> list[str]:
    """The sentences of a block, code spans removed: what is quoted demands nothing."""
    return re.split(r"(?<=[.!?]) ", _CODE.sub("…", block))


def table(heading: str) -> list[list[str]]:
    """The cells of the last table below a heading, without its head."""
    section = re.split(r"^#+ ", PAGE.split(f"{heading}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    start = max(number for number, row in enumerate(rows) if set(row[0]) == {"-"})
    return [[cell.strip() for cell in row] for row in rows[start + 1 :]]


def codes(cell: str) -> list[str]:
    """The code spans of a cell, without their backticks."""
    return [code.strip("`") for code in _CODE.findall(cell)]
