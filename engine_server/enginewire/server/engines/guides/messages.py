"""What a caller is told of an error that a library raises for a guide. Knows no library's types."""

from __future__ import annotations

import re
from typing import Final

PLACE: Final = re.compile(r"\[[\d:]+\] \S+:\d+: (Check failed: .*? is false: )?")
"""A time, a place in the source of xgrammar, and what it looked for there: its messages begin with them."""


def first_line(error: Exception) -> str:
    """What to tell of it: libraries write pages."""
    text = next(iter(str(error).strip().splitlines()), type(error).__name__)
    return PLACE.sub("", text, count=1).replace("std::bad_alloc", "too large")
