"""What `make test` leaves to `make test-long`: variants of what others show, and runs that CI makes too."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

long = pytest.mark.long


def long_but(short: Iterable[object], values: Iterable[object]) -> list[object]:
    """The values of a parameter, of which only some are for `make test`."""
    few = list(short)
    return [value if value in few else pytest.param(value, marks=long) for value in values]
