"""Links in the documentation lead somewhere, and the files it names are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.repository import ROOT

PLACES = ("", "docs/**/", "conformance/", "examples/", "examples/*/", "engine_server/*/", "proto/**/")
PAGES = sorted(page for place in PLACES for page in ROOT.glob(f"{place}*.md"))
LINK = re.compile(r"\]\((?!https?:)(?P<path>[^)#\s]*)(#(?P<anchor>[^)\s]+))?\)")

OF_READERS = {"countdown.py"}
"""What a reader of the pages writes."""
PYTHON_FILES = [
    f"/{file.relative_to(ROOT).as_posix()}"
    for place in (
        "proto",
        "engine_server",
        "backend_client",
        "conformance",
        "benchmarks",
        "examples",
        "tests",
        ".ci",
    )
    for file in ROOT.glob(f"{place}/**/*.py")
]


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_relative_links_resolve(page: Path) -> None:
    for link in LINK.finditer(page.read_text()):
        target = (page.parent / link["path"]).resolve() if link["path"] else page
        assert target.exists(), link[0]
        assert link["anchor"] is None or link["anchor"] in anchors(target), link[0]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_python_files_that_are_named_exist(page: Path) -> None:
    for name in set(re.findall(r"(?<![\w./*-])[\w./-]*\w\.py\b", page.read_text())) - OF_READERS:
        path = name.removeprefix("../")
        assert any(file.endswith(f"/{path}") for file in PYTHON_FILES), name
