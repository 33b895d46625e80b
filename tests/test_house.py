"""Each folder holds one noun, and few enough files to see at a look."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

from tests.repository import ROOT

PLACES = ("proto", "engine_server", "backend_client", "conformance")
FOLDERS = sorted(
    path.parent for place in PLACES for path in ROOT.glob(f"{place}/enginewire/*/**/__init__.py")
)
MAX_FILES = 15
MAX_LINES = 350
# One entry for each area of the contract, all of one shape; and the stubs of the contract.
CATALOGUES = ("conformance/checks", "conformance/mutants", "conformance/reference", "enginewire/v1")


def name_of(folder: Path) -> str:
    return folder.relative_to(ROOT).as_posix()


def modules(folder: Path) -> list[Path]:
    return [
        path for path in folder.glob("*.py") if not path.name.startswith("__") and "_pb2" not in path.name
    ]


@pytest.mark.parametrize("folder", FOLDERS, ids=name_of)
def test_a_room_says_what_it_holds(folder: Path) -> None:
    assert ast.get_docstring(ast.parse((folder / "__init__.py").read_text()))


@pytest.mark.parametrize("folder", FOLDERS, ids=name_of)
def test_a_room_is_seen_at_a_look(folder: Path) -> None:
    assert len(modules(folder)) <= MAX_FILES or name_of(folder).endswith(CATALOGUES)


@pytest.mark.parametrize("folder", FOLDERS, ids=name_of)
def test_three_files_with_one_prefix_are_a_room(folder: Path) -> None:
    prefixes = Counter(path.stem.partition("_")[0] for path in modules(folder) if "_" in path.stem)
    assert [prefix for prefix, count in prefixes.items() if count > 2 and prefix != "as"] == []


def test_a_file_is_about_one_noun() -> None:
    files = [path for folder in FOLDERS for path in modules(folder)]
    assert len(files) > 300
    assert [path.name for path in files if len(path.read_text().splitlines()) > MAX_LINES] == []
