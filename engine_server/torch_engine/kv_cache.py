"""The block pool: which KV blocks are free and which are in use.

Holds block numbers only. Knows nothing about torch, sequences or what a block contains.
"""

from __future__ import annotations

from collections.abc import Sequence


class BlockPool:
    """A fixed number of KV blocks of `block_size` tokens each, handed out and taken back."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._free = list(reversed(range(num_blocks)))
        self._used: set[int] = set()

    @property
    def num_free(self) -> int:
        """Blocks that can be allocated now."""
        return len(self._free)

    @property
    def num_used(self) -> int:
        """Blocks that some sequence holds."""
        return len(self._used)

    @property
    def capacity(self) -> int:
        """Tokens the whole pool can hold."""
        return self.num_blocks * self.block_size

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks needed to hold `num_tokens`."""
        return -(-num_tokens // self.block_size)

    def allocate(self, count: int) -> list[int]:
        """Take `count` blocks; the caller has looked at `num_free` first."""
        assert 0 <= count <= self.num_free, "allocate without asking num_free"
        blocks = [self._free.pop() for _ in range(count)]
        self._used.update(blocks)
        return blocks

    def free(self, blocks: Sequence[int]) -> None:
        """Give blocks back."""
        assert self._used.issuperset(blocks), "a block was freed twice"
        self._used.difference_update(blocks)
        self._free.extend(reversed(blocks))
