"""What vLLM raises for a request that it does not take."""

from __future__ import annotations

import re
from typing import Final

from vllm.exceptions import VLLMValidationError

REFUSALS: Final = (VLLMValidationError, ValueError)
PLACE: Final = re.compile(r"\[[\d:]+\] \S+:\d+: ")
"""A time and a place in the source of xgrammar, which its messages begin with."""


def first_line(error: Exception) -> str:
    """What to tell of it: grammar libraries write pages."""
    return PLACE.sub("", next(iter(str(error).splitlines()), type(error).__name__))
