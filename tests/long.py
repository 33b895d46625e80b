"""What `make test` leaves to `make test-long`: variants of what others show, and runs that CI makes too."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import settings

USUAL_EXAMPLES = 100
"""What hypothesis draws for a test that says nothing."""

long = pytest.mark.long


def long_but(short: Iterable[object], values: Iterable[object]) -> list[object]:
    """The values of a parameter, of which only some are for `make test`."""
    few = list(short)
    return [value if value in few else pytest.param(value, marks=long) for value in values]


def examples(most: int) -> int:
    """How many of the examples that `make test-long` draws are drawn with this profile of hypothesis.

    Not for quick state machines: each run leaves out some rules, and a few runs may leave out the same.
    """
    return most * settings.default.max_examples // USUAL_EXAMPLES
