"""Links in the documentation lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.repository import ROOT

PLACES = ("", "docs/**/", "conformance/", "examples/", "examples/*/", "engine_server/*/", "proto/**/")
PAGES = sorted(page for place in PLACES for page in ROOT.glob(f"{place}*.md"))
LINK = re.compile(r"\]\((?!https?:)(?P<path>[^)#\s]*)(#(?P<anchor>[^)\s]+))?\)")


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_relative_links_resolve(page: Path) -> None:
    for link in LINK.finditer(page.read_text()):
        target = (page.parent / link["path"]).resolve() if link["path"] else page
        assert target.exists(), link[0]
        assert link["anchor"] is None or link["anchor"] in anchors(target), link[0]
