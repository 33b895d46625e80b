"""When waiting sequences may join those that run.

Knows nothing about blocks, requests or how a scheduler decides.
"""

from __future__ import annotations

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
