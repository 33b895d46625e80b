"""Imports a library without the large modules that it imports for parts of it that nobody uses here.

xgrammar imports torch and transformers for its integrations with them, which takes seconds and hundreds of
megabytes in a process that only compiles grammars. Knows nothing about any one library.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType


@contextmanager
def missing(*names: str) -> Iterator[None]:
    """As if these modules were not installed, unless they are loaded already."""
    with _instead(dict.fromkeys(names)):
        yield


@contextmanager
def standing_in(*names: str) -> Iterator[None]:
    """As if these modules held nothing but empty classes, unless they are loaded already."""
    with _instead({name: _StandIn(name) for name in names}):
        yield


@contextmanager
def _instead(others: dict[str, ModuleType | None]) -> Iterator[None]:
    absent = {name: other for name, other in others.items() if name not in sys.modules}
    # None in this table is Python's own way to say that a module cannot be imported.
    sys.modules.update(absent)  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in absent:
            del sys.modules[name]


class _Empty:
    def __init__(self, *given: object, **named: object) -> None:
        pass


class _StandIn(ModuleType):
    def __getattr__(self, name: str) -> type[_Empty]:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Empty
