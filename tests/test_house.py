"""The house rule: a folder holds about a dozen nouns and a docstring; no file is long."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.repository import ROOT

PLACES = ("engine_server", "backend_client", "conformance", "proto")
MOST_NOUNS, MOST_LINES, SAME_PREFIX = 16, 350, 3

SHARED_PREFIX = {"report/formats": "as_html and as_json would else hide modules of the same names"}


def faults(folder: Path) -> list[str]:
    """What breaks the house rule in this folder, the folders inside it left out."""
    files = [path for path in sorted(folder.glob("*.py")) if "_pb2" not in path.name]
    stems = [path.stem for path in files if not path.stem.startswith("__")]
    name, found = "/".join(folder.parts[-2:]), []
    nouns = len(stems) + len([*folder.glob("*/__init__.py")])
    if nouns > MOST_NOUNS:
        found.append(f"{name}: {nouns} nouns")
    prefixes = Counter(stem.split("_")[0] for stem in stems)
    if max(prefixes.values(), default=0) >= SAME_PREFIX and name not in SHARED_PREFIX:
        found.append(f"{name}: a folder for {prefixes.most_common(1)[0][0]}_*")
    if files and folder.name != "enginewire" and not _begins_with_docstring(folder / "__init__.py"):
        found.append(f"{name}: no docstring")
    for path in files:
        if len(path.read_text().splitlines()) > MOST_LINES:
            found.append(f"{name}/{path.name}: more than {MOST_LINES} lines")
    return found


def _begins_with_docstring(init: Path) -> bool:
    return init.is_file() and init.read_text().startswith('"""')


def test_our_folders_keep_the_house_rule() -> None:
    roots = [ROOT / place / "enginewire" for place in PLACES]
    folders = [path for root in roots for path in (root, *root.rglob("*")) if path.is_dir()]
    assert [fault for folder in folders for fault in faults(folder)] == []


@pytest.mark.parametrize(
    ("files", "fault"),
    [
        ({f"{letter}.py": "" for letter in "abcdefghijklmnopq"}, "17 nouns"),
        ({f"{letter}/__init__.py": "" for letter in "abcdefghijklmnopq"}, "17 nouns"),
        ({"kv_a.py": "", "kv_b.py": "", "kv_c.py": ""}, "a folder for kv_*"),
        ({"__init__.py": "import os\n"}, "no docstring"),
        ({"long.py": "x = 1\n" * 351}, "more than 350 lines"),
    ],
)
def test_each_rule_sees_what_breaks_it(tmp_path: Path, files: dict[str, str], fault: str) -> None:
    (tmp_path / "__init__.py").write_text('"""A room."""\n')
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    found = faults(tmp_path)
    assert len(found) == 1
    assert fault in found[0]
