"""The names that the documentation imports from the packages are there; a package alone loads nothing."""

from __future__ import annotations

import ast
import re
from importlib import import_module
from pathlib import Path
from textwrap import dedent

import pytest

from tests.repository import ROOT
from tests.test_imports import loaded_by

DOORS = ("enginewire.server", "enginewire.torch_engine", "enginewire.backend", "enginewire.conformance")
CONTRACT = ("enginewire", "enginewire.field_rules", "enginewire.v1.status_codes")
"""What the base install has for authors of engines: the messages, and the tables of the contract."""
PAGES = [*ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.py"), ROOT / "conformance" / "README.md"]


def imports_of(source: str) -> set[tuple[str, str]]:
    """Module and name of every `from … import …`."""
    return {
        (node.module or "", name.name)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ImportFrom)
        for name in node.names
    }


def code_of(page: Path) -> str:
    text = page.read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    return text if page.suffix == ".py" else "\n".join(map(dedent, blocks))


@pytest.mark.parametrize("door", DOORS)
def test_every_name_is_the_one_that_type_checkers_see(door: str) -> None:
    package = import_module(door)
    assert package.__file__ is not None
    seen = {
        name: module
        for module, name in imports_of(Path(package.__file__).read_text())
        if module.startswith("enginewire.") and name[0].isupper()
    }
    assert {name for name in package.__all__ if name[0].isupper()} == set(seen)
    for name, module in seen.items():
        assert getattr(package, name) is getattr(import_module(module), name)


@pytest.mark.parametrize("door", DOORS)
def test_every_listed_name_resolves(door: str) -> None:
    package = import_module(door)
    assert all(getattr(package, name) is not None for name in package.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = package.Nothing


@pytest.mark.parametrize("door", DOORS)
def test_a_package_alone_loads_none_of_its_modules(door: str) -> None:
    assert {name for name in loaded_by(f"import {door}") if name.startswith("enginewire.")} == {door}
    assert not loaded_by(f"import {door}") & {"grpc", "google", "torch", "tokenizers"}


def test_the_pages_enter_by_the_front_doors() -> None:
    imports = {
        entry for page in PAGES for entry in imports_of(code_of(page)) if entry[0].startswith("enginewire")
    }
    assert ("enginewire.server", "BaseEngine") in imports
    for module, name in imports:
        assert module in (*DOORS, *CONTRACT), f"{module} is an inner module: {name}"
        assert module in CONTRACT or name in import_module(module).__all__, f"{module}.{name}"
