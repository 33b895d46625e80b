"""What a sliding window leaves of a sequence: which of its blocks nobody sees any more, how many it holds.

Knows nothing about pools, requests or schedulers.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SlidingWindow:
    """No token sees more than the last `num_tokens` tokens, itself included; a block has `block_size`."""

    num_tokens: int
    block_size: int

    def num_behind(self, num_computed: int) -> int:
        """The first blocks of a sequence that no token to come can see, once `num_computed` are computed.

        The last full block is not among them: it is the parent of the next one in the prefix cache.
        """
        unseen = (num_computed - self.num_tokens + 1) // self.block_size
        return max(min(unseen, num_computed // self.block_size - 1), 0)

    def most_blocks(self, num_scheduled: int) -> int:
        """Blocks that a sequence of any length holds at most, with up to `num_scheduled` tokens in a step."""
        seen_before = max(self.num_tokens - 2, self.block_size - 1)
        return -(-(seen_before + num_scheduled) // self.block_size) + 1
