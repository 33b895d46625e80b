"""Named things that decorators add: checks and mutants of either side. Knows nothing about them."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Generic, TypeVar

T = TypeVar("T")


class Catalogue(Generic[T]):
    """What the modules of one package add when they are imported."""

    def __init__(self, package: str) -> None:
        self._package = package
        self._named: dict[str, T] = {}

    def add(self, name: str, thing: T) -> None:
        """Raises ValueError for a name that is taken."""
        if name in self._named:
            raise ValueError(f"two of {self._package} are called {name}")
        self._named[name] = thing

    def all(self) -> tuple[T, ...]:
        """Everything, by name; imports the modules of all rooms."""
        package = importlib.import_module(self._package)
        for module in pkgutil.walk_packages(package.__path__, f"{self._package}."):
            if not module.name.endswith(".__main__"):
                importlib.import_module(module.name)
        return tuple(self._named[name] for name in sorted(self._named))
