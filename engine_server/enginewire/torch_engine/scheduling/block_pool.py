"""The block pool: which KV blocks are held, which are kept for reuse, and which are blank.

Holds block numbers and how many sequences hold each. Knows nothing about torch, sequences or what a
block contains.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence


class BlockPool:
    """A fixed number of KV blocks of `block_size` tokens each, handed out, shared and taken back.

    A block that `keep` has marked stays as it is when its last holder lets it go. When there is no
    blank block left, the kept block that was let go first is given up, and `on_evict` hears of it.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.on_evict: Callable[[int], None] = lambda block: None
        self._holders = [0] * num_blocks
        self._blank = list(reversed(range(num_blocks)))
        self._kept: set[int] = set()
        self._idle: OrderedDict[int, None] = OrderedDict()

    @property
    def num_free(self) -> int:
        """Blocks that can be allocated now, kept ones that nobody holds included."""
        return len(self._blank) + len(self._idle)

    @property
    def num_used(self) -> int:
        """Blocks that some sequence holds."""
        return self.num_blocks - self.num_free

    @property
    def num_cached(self) -> int:
        """Kept blocks that nobody holds."""
        return len(self._idle)

    @property
    def idle(self) -> list[int]:
        """The kept blocks that nobody holds, the next one to be given up first."""
        return list(self._idle)

    @property
    def capacity(self) -> int:
        """Tokens the whole pool can hold."""
        return self.num_blocks * self.block_size

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks needed to hold `num_tokens`."""
        return -(-num_tokens // self.block_size)

    def is_held(self, block: int) -> bool:
        """True while some sequence holds the block."""
        return self._holders[block] > 0

    def allocate(self, count: int) -> list[int]:
        """Take `count` blocks for one holder; the caller has looked at `num_free` first."""
        assert 0 <= count <= self.num_free, "allocate without asking num_free"
        while len(self._blank) < count:
            self._evict()
        blocks = [self._blank.pop() for _ in range(count)]
        for block in blocks:
            self._holders[block] = 1
        return blocks

    def hold(self, blocks: Sequence[int]) -> None:
        """One more holder for blocks that are held or kept."""
        for block in blocks:
            assert self._holders[block] or block in self._idle, "a blank block has nothing to share"
            self._holders[block] += 1
            self._idle.pop(block, None)

    def free(self, blocks: Sequence[int]) -> None:
        """One holder less for each block; the last ones are let go first."""
        for block in reversed(blocks):
            assert self._holders[block], "a block was freed twice"
            self._holders[block] -= 1
            if self._holders[block] == 0:
                self._let_go(block)

    def keep(self, block: int) -> None:
        """Mark a held block as worth keeping when nobody holds it any more."""
        assert self._holders[block], "only a held block has a content worth keeping"
        self._kept.add(block)

    def unkeep(self, block: int) -> None:
        """A kept block becomes blank: now, or when nobody holds it any more. `on_evict` is not called."""
        if block in self._idle:
            self.drop([block])
        else:
            self._kept.remove(block)

    def give_up_last(self, block: int) -> None:
        """A kept block, if it is idle, will be given up after all that are idle now."""
        if block in self._idle:
            self._idle.move_to_end(block)

    def drop(self, blocks: Sequence[int]) -> None:
        """Make idle blocks blank. `on_evict` is not called."""
        for block in blocks:
            del self._idle[block]
            self._kept.remove(block)
            self._blank.append(block)

    def _let_go(self, block: int) -> None:
        if block in self._kept:
            self._idle[block] = None
        else:
            self._blank.append(block)

    def _evict(self) -> None:
        oldest = next(iter(self._idle))
        self.drop([oldest])
        self.on_evict(oldest)
