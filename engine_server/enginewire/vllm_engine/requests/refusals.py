"""What vLLM raises for a request that it does not take."""

from __future__ import annotations

from typing import Final

from vllm.exceptions import VLLMValidationError

REFUSALS: Final = (VLLMValidationError, ValueError)
