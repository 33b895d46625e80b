"""How long things may take at this target: measured first, never guessed.

A bound is a floor or a multiple of what was measured, whichever is larger, times the user's
`--time-scale`. All values are seconds.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

MEASURED_REQUESTS: Final = 3
MEASURED_TOKENS: Final = 16


@dataclass(frozen=True, slots=True)
class Bounds:
    """What was measured, and the bounds that follow from it."""

    ttft: float = 0.0
    itl: float = 0.0
    least_itl: float = 0.0
    """Of all measured requests; the others are the longest, for a machine may stall while it measures."""
    scale: float = 1.0

    @property
    def reaction(self) -> float:
        """For an effect to show: a cancelled request's slot is free, a drain is visible."""
        return max(2.0, 20 * self.itl, 4 * self.ttft) * self.scale

    @property
    def answer(self) -> float:
        """For a unary call, or for a small request's status."""
        return max(5.0, 20 * self.ttft + 40 * self.itl) * self.scale

    @property
    def check(self) -> float:
        """For a whole check."""
        return max(60.0, 240 * self.ttft + 2000 * self.itl) * self.scale

    def generation(self, output_tokens: int, prompt_tokens: int = 0) -> float:
        """For a request from start to end, alone or in good company; no less patient than a unary call."""
        # A prompt is computed in chunks: per 64 tokens at most as long as a small one.
        prefill = self.ttft * (1 + prompt_tokens / 64)
        return 2 * self.answer + 10 * (prefill + self.itl * output_tokens) * self.scale

    def tokens_in(self, seconds: float) -> int:
        """Tokens that one stream needs at least that time for; at least 1."""
        return max(1, round(seconds / max(self.least_itl, 20e-6)))

    def describe(self) -> str:
        """One line for reports."""
        measured = f"measured first token {self.ttft * 1e3:.1f} ms, token {self.itl * 1e3:.2f} ms"
        return f"{measured}; bounds: reaction {self.reaction:.1f} s, answer {self.answer:.1f} s"


async def pause(seconds: float = 0.005) -> None:
    """Between two looks at something that is polled."""
    await asyncio.sleep(seconds)
