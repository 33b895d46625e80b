"""Backends that each break one rule: the reference with about one method overridden."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from enginewire.conformance.client_side.mutants.registry import ClientMutant, registered


@cache
def client_mutants() -> tuple[ClientMutant, ...]:
    """Every broken backend, by name."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return registered()
