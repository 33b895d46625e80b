"""The checks of backends, one module per area."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from enginewire.conformance.client_side.checks.registry import ClientCheck, registered


@cache
def client_checks() -> tuple[ClientCheck, ...]:
    """Every check of backends, by key."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return registered()
