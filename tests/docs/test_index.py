"""Every page of docs/ says whom it is for, and is in the index, which is the navigation of the site."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.repository import ROOT

DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("[a-z]*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_begins_with_whom_it_is_for(page: Path) -> None:
    assert re.match(r"# .+\n\n\*For [^*]+\.\*\n\n", page.read_text())


def test_the_index_has_every_page() -> None:
    linked = re.findall(r"\]\(([\w-]+\.md)", (DOCS / "README.md").read_text())
    assert set(linked) == {page.name for page in PAGES}
