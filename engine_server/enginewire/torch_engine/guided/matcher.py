"""The grammar of a guided request while it runs: which tokens may come next, and how long that may take.

Knows nothing about libraries, compiling, logits, queues or protobuf.
"""

from __future__ import annotations

import time
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from enginewire.torch_engine.guided.library import LibraryGrammar, LibraryMatcher

SECONDS_AT_START = 0.25
SECONDS_PER_CALL = 0.002
"""Processor time a matcher may take, on average well above what any usual grammar does: following an
ambiguous one takes longer with every token, on the thread that all requests share."""
OVERHEAD_BYTES = 2**15
"""Counted for every grammar, so that small ones are not too many."""


@dataclass(frozen=True, slots=True)
class CompiledGuide:
    """A grammar ready for use."""

    grammar: LibraryGrammar

    @property
    def num_bytes(self) -> int:
        """An estimate of the memory it takes."""
        return self.grammar.num_bytes + OVERHEAD_BYTES

    def start(self, ending_ids: list[int]) -> GuidedMatcher:
        """A matcher at the beginning of the output."""
        return GuidedMatcher(self.grammar.start(ending_ids))


class GuidedMatcher:
    """Where one choice is in its grammar, as long as its library is quick enough."""

    def __init__(self, matcher: LibraryMatcher, seconds: float = SECONDS_AT_START) -> None:
        """`seconds` may be used up beyond what each call is granted."""
        self._matcher = matcher
        self._seconds_left = seconds

    @property
    def is_over(self) -> bool:
        """True when the grammar allows nothing more."""
        return self._matcher.is_over

    @property
    def is_too_slow(self) -> bool:
        """True when it has used up its time."""
        return self._seconds_left <= 0

    def accept(self, token_id: int) -> bool:
        """Go on by one token; False when the grammar does not allow it, or is too slow to follow."""
        started = time.thread_time()
        return not self.is_over and self._matcher.accept(token_id) and self._is_in_time(started)

    def fill(self, masks: object, row: int) -> bool:
        """Set the bits of the next tokens in a tensor [rows, vocab / 32]; False when that is too slow."""
        started = time.thread_time()
        return self._matcher.fill(masks, row) and self._is_in_time(started)

    def count_allowed(self, token_ids: Seq[int]) -> int:
        """How many of these tokens it would accept one after the other; 0 once it needs its time itself."""
        is_quick = self._seconds_left >= SECONDS_AT_START and not self.is_over
        return self._matcher.count_allowed(token_ids) if is_quick else 0

    def _is_in_time(self, started: float) -> bool:
        self._seconds_left += SECONDS_PER_CALL - (time.thread_time() - started)
        return not self.is_too_slow
