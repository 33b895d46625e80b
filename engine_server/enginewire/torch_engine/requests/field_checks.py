"""The rules that a field of a message obeys or is refused by name.

Knows nothing about which fields there are.
"""

from __future__ import annotations

from enginewire import v1 as pb
from enginewire.server.failures import InvalidRequest


def check(field: str, passed: bool, rule: str) -> None:
    """Raise InvalidRequest that says the rule, unless the field `passed` it."""
    if not passed:
        raise InvalidRequest(f"{field}: {rule}", field=field)


def number_in(options: pb.SamplingOptions, name: str, default: float, low: float, high: float) -> float:
    """The sampling option `name`, or `default`. Raises InvalidRequest outside of the range."""
    if not options.HasField(name):  # type: ignore[arg-type]  # a plain str where the stub lists literals
        return default
    value: float = getattr(options, name)
    check(f"sampling_options.{name}", low <= value <= high, f"must be from {low:g} to {high:g}")
    return value
