"""The grammar of a guided request while it runs: which tokens may come next.

Knows xgrammar's matcher; nothing about compiling, logits, queues or protobuf.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import xgrammar

SECONDS_AT_START = 0.25
SECONDS_PER_CALL = 0.002
"""Processor time a matcher may take, on average well above what any usual grammar does: following an
ambiguous one takes longer with every token, on the thread that all requests share."""


@dataclass(frozen=True, slots=True)
class CompiledGuide:
    """A grammar ready for use. `num_bytes` is an estimate of the memory it takes."""

    grammar: xgrammar.CompiledGrammar
    num_bytes: int

    def start(self, ending_ids: list[int]) -> GuidedMatcher:
        """A matcher at the beginning of the output."""
        return GuidedMatcher(self.grammar, ending_ids)


class GuidedMatcher:
    """Where one choice is in its grammar.

    `ending_ids` are no part of the match: they can be chosen where it is complete, and end it.
    Without any the match ends as soon as it is complete.
    """

    def __init__(self, grammar: xgrammar.CompiledGrammar, ending_ids: list[int]) -> None:
        self._seconds_left = SECONDS_AT_START
        self._matcher = (
            xgrammar.GrammarMatcher(grammar, override_stop_tokens=list(ending_ids))
            if ending_ids
            else xgrammar.GrammarMatcher(grammar, terminate_without_stop_token=True)
        )

    @property
    def is_over(self) -> bool:
        """True when the grammar allows nothing more."""
        return self._matcher.is_terminated()

    def accept(self, token_id: int) -> bool:
        """Go on by one token; False when the grammar does not allow it, or is too slow to follow."""
        started = time.thread_time()
        return not self.is_over and self._matcher.accept_token(token_id) and self._is_in_time(started)

    def fill(self, masks: object, row: int) -> bool:
        """Set the bits of the next tokens in a tensor [rows, vocab / 32]; False when that is too slow."""
        started = time.thread_time()
        self._matcher.fill_next_token_bitmask(masks, row)  # type: ignore[arg-type]  # whoever calls has torch
        return self._is_in_time(started)

    def _is_in_time(self, started: float) -> bool:
        self._seconds_left += SECONDS_PER_CALL - (time.thread_time() - started)
        return self._seconds_left > 0
