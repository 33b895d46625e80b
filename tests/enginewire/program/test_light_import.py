"""Modules that are left out of an import, and are as they were afterwards."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from enginewire.program.light_import import missing, standing_in

ABSENT = "a_module_that_nobody_has"


def test_a_missing_module_cannot_be_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / f"{ABSENT}.py").write_text("ANSWER = 42")
    monkeypatch.syspath_prepend(tmp_path)
    with missing(ABSENT), pytest.raises(ImportError):
        importlib.import_module(ABSENT)
    assert importlib.import_module(ABSENT).ANSWER == 42
    del sys.modules[ABSENT]


def test_a_stand_in_has_every_name_as_a_class_and_no_metadata() -> None:
    with standing_in(ABSENT):
        module = importlib.import_module(ABSENT)
        assert isinstance(module.anything(1, two=3), module.Other)
        assert issubclass(type("Mine", (module.Base,), {}), module.Base)
        assert not hasattr(module, "__path__")
    assert ABSENT not in sys.modules


@pytest.mark.parametrize("leaving_out", [missing, standing_in])
def test_a_module_that_is_loaded_stays(leaving_out: object) -> None:
    before = sys.modules["json"]
    with leaving_out("json"):
        assert importlib.import_module("json") is before
    assert sys.modules["json"] is before


def test_nothing_is_left_after_an_import_that_fails() -> None:
    with pytest.raises(ModuleNotFoundError), standing_in(ABSENT):
        importlib.import_module(f"{ABSENT}.part")
    assert ABSENT not in sys.modules
