"""When waiting sequences may join those that run.

Knows nothing about blocks, requests or how a scheduler decides.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AdmissionRules:
    """Every default means "as soon as they fit".

    A step computes at most `max_batch_prefill_tokens` prompt tokens, and one in which sequences decode at
    most `max_mixed_prefill_tokens`: they wait for the prompts beside them. Prompts and longest outputs of all
    running sequences together stay within `max_batch_total_tokens`. While any sequence runs, the waiting
    ones must be at least `waiting_served_ratio` times as many, or none was admitted for
    `max_waiting_tokens` steps: each admission makes those that run wait for a prefill. With
    `whole_prompts` a prompt is never cut into pieces; each must fit into a step.
    """

    max_batch_prefill_tokens: int | None = None
    max_mixed_prefill_tokens: int | None = None
    max_batch_total_tokens: int | None = None
    waiting_served_ratio: float = 0.0
    max_waiting_tokens: int = 20
    whole_prompts: bool = False

    def prefill_budget(self, num_tokens: int, decodes: int) -> int:
        """Prompt tokens for a step of `num_tokens` in which `decodes` sequences get a token each."""
        limits = [num_tokens - decodes]
        if self.max_batch_prefill_tokens is not None:
            limits.append(self.max_batch_prefill_tokens)
        if decodes and self.max_mixed_prefill_tokens is not None:
            limits.append(self.max_mixed_prefill_tokens)
        return min(limits)

    def allow_total(self, max_total_tokens: Iterable[int]) -> bool:
        """True when sequences that may get that long can run together."""
        return self.max_batch_total_tokens is None or sum(max_total_tokens) <= self.max_batch_total_tokens
