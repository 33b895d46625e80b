"""docs/architecture.md shows the rooms that there are."""

from __future__ import annotations

import re
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from types import ModuleType

import pytest

from tests.repository import ROOT

PAGE = (ROOT / "docs" / "architecture.md").read_text()
SCRIPT = ROOT / ".ci/make/rooms"
PLACES = {
    "server": "engine_server/enginewire/server",
    "torch_engine": "engine_server/enginewire/torch_engine",
    "backend": "backend_client/enginewire/backend",
    "conformance": "conformance/enginewire/conformance",
    "v1": "proto/enginewire/v1",
    "tracing": "proto/enginewire/tracing",
}


@pytest.fixture(scope="module")
def rooms() -> ModuleType:
    spec = spec_from_loader("rooms", SourceFileLoader("rooms", str(SCRIPT)))
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_pictures_are_not_stale(rooms: ModuleType) -> None:
    assert rooms.main(["--check"]) == 0


def test_every_package_has_its_picture(rooms: ModuleType) -> None:
    assert re.findall(r"<!-- rooms of (\S+) -->\n```\n┌─ (\S+) ─", PAGE) == [
        (name, name) for name in rooms.PACKAGES
    ]


def test_no_room_imports_another_that_imports_it(rooms: ModuleType) -> None:
    for package, folder in rooms.PACKAGES.items():
        ties = rooms.ties_of(package, folder)
        assert [room for room, below in ties.items() if room in below] == [], package


def test_a_room_stands_above_all_that_it_imports(rooms, tmp_path):
    sources = {
        "top.py": "from pkg.middle.inner import x",
        "middle/__init__.py": '"""In the middle. Not shown."""',
        "middle/inner.py": "def f():\n    from pkg import ground",
        "ground.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import pkg.top",
    }
    for name, source in sources.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(source)
    ties = rooms.ties_of("pkg", tmp_path)
    assert ties == {"top": {"middle", "ground"}, "middle": {"ground"}, "ground": set()}
    assert rooms.floors_of(ties) == [["top"], ["middle"], ["ground"]]
    assert rooms.about(tmp_path / "middle/__init__.py") == "In the middle."


def test_the_files_of_a_change_exist() -> None:
    table = PAGE.split("## Where would I change X?")[1].split("\n## ")[0]
    named = [name for name in re.findall(r"`([\w/]+\.\w+|[\w/]+/)`", table) if "/" in name.rstrip("/")]
    assert len(named) > 40
    for name in named:
        package, _, inner = name.partition("/")
        assert (ROOT / PLACES.get(package, package) / inner).exists(), name
