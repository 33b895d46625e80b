"""The checks, one module per area of the contract."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from enginewire.conformance.running.registry import Check, registered


@cache
def all_checks() -> tuple[Check, ...]:
    """Every check of the kit, ordered by phase and key."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return registered()
