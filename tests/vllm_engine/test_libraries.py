"""Which library follows a grammar, with a stand-in for the part of vLLM that keeps the first one for all."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from enginewire.vllm_engine.libraries import follow_each_by_its_own


class FirstForAll:
    """As vLLM's `StructuredOutputManager`."""

    backend: str | None = None

    def grammar_init(self, request: Any) -> None:
        if self.backend is None:
            self.backend = f"{request.sampling_params.structured_outputs._backend} was made"
        request.structured_output_request.grammar = self.backend


def followed_by(manager: FirstForAll, library: str) -> str:
    """What compiles the grammar of a request for which this library was chosen."""
    request = SimpleNamespace(
        sampling_params=SimpleNamespace(structured_outputs=SimpleNamespace(_backend=library)),
        structured_output_request=SimpleNamespace(grammar=None),
    )
    manager.grammar_init(request)
    return str(request.structured_output_request.grammar)


@pytest.fixture
def manager(monkeypatch: pytest.MonkeyPatch) -> FirstForAll:
    class Manager(FirstForAll):
        """Changed by each test anew."""

    for name in ("vllm", "vllm.v1", "vllm.v1.structured_output"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setattr(sys.modules[name], "StructuredOutputManager", Manager, raising=False)
    follow_each_by_its_own()
    return Manager()


def test_each_grammar_has_its_own_library(manager: FirstForAll) -> None:
    asked = ["xgrammar", "guidance", "guidance", "xgrammar"]
    assert [followed_by(manager, library) for library in asked] == [f"{each} was made" for each in asked]


def test_what_makes_the_masks_is_there_from_the_first_grammar_on(manager: FirstForAll) -> None:
    followed_by(manager, "guidance")
    assert manager.backend == "guidance was made"


def test_a_request_without_a_grammar_is_left_alone(manager: FirstForAll) -> None:
    manager.grammar_init(SimpleNamespace(structured_output_request=None))
    assert manager.backend is None
