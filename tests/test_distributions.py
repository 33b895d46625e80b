"""The kit is a distribution of its own: it takes what it imports from the ground floor, and nothing else."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

from tests.repository import ROOT

GROUND = ROOT / "proto" / "enginewire"
KIT = ROOT / "conformance"


def configuration(path: Path) -> dict[str, object]:
    return tomllib.loads(path.read_text())


def modules_of(source: Path) -> Iterator[str]:
    """The first name behind `enginewire` of each import."""
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names = [node.module]
            if node.module == "enginewire":
                names = [f"enginewire.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        yield from (name.split(".")[1] for name in names if name.startswith("enginewire."))


def needed() -> set[str]:
    """Modules of the ground floor that the kit imports, and those that these import."""
    found: set[str] = set()
    due = list((KIT / "enginewire").rglob("*.py"))
    while due:
        for module in modules_of(due.pop()):
            if module == "conformance" or module in found:
                continue
            found.add(module)
            path = GROUND / module
            due += list(path.rglob("*.py")) if path.is_dir() else [path.with_suffix(".py")]
    return found


def test_the_kit_brings_what_it_imports_of_the_ground_floor() -> None:
    wheel = configuration(KIT / "pyproject.toml")["tool"]["hatch"]["build"]["targets"]["wheel"]  # type: ignore[index]
    inside = {Path(source).stem for source in wheel["force-include"] if "proto" in source}
    assert inside - {"py"} == needed()
    assert all((KIT / source).exists() for source in wheel["force-include"])


def test_both_distributions_need_the_same_and_offer_the_same_kit() -> None:
    kit, whole = (configuration(path / "pyproject.toml")["project"] for path in (KIT, ROOT))
    for name in ("dependencies", "requires-python", "license"):
        assert kit[name] == whole[name], name  # type: ignore[index]
    for table in ("scripts", "entry-points"):
        ours: dict[str, object] = kit[table]  # type: ignore[index]
        assert ours.items() <= whole[table].items(), table  # type: ignore[index]
