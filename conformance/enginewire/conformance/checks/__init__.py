"""The checks: one module per area of the contract, in rooms of areas that go together."""

from __future__ import annotations

from functools import cache

from enginewire.conformance.running.registry import CHECKS, Check


@cache
def all_checks() -> tuple[Check, ...]:
    """Every check of engine servers, ordered by phase and key."""
    return tuple(sorted(CHECKS.all(), key=lambda check: check.phase))
