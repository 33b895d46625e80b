"""What vLLM raises for a request that it does not take."""

from __future__ import annotations

from typing import Final

from vllm.exceptions import VLLMValidationError

REFUSALS: Final = (VLLMValidationError, ValueError)


def first_line(error: Exception) -> str:
    """What to tell of it: grammar libraries write pages."""
    return next(iter(str(error).splitlines()), type(error).__name__)
