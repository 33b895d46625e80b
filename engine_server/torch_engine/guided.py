"""The grammar of a guided request while it runs: which tokens may come next.

Knows xgrammar's matcher; nothing about compiling, logits, queues or protobuf.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import xgrammar

SLOW_SECONDS = 0.5
"""Processor time after which a grammar is too ambiguous to be followed any further."""


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
        """Go on by one token; False, and no change, when the grammar does not allow it."""
        return not self.is_over and self._matcher.accept_token(token_id)

    def fill(self, masks: object, row: int) -> bool:
        """Set the bits of the next tokens in a tensor [rows, vocab / 32]; False when that is too slow."""
        started = time.thread_time()
        self._matcher.fill_next_token_bitmask(masks, row)  # type: ignore[arg-type]  # whoever calls has torch
        return time.thread_time() - started <= SLOW_SECONDS
