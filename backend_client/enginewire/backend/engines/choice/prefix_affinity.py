"""Which engine has lately computed the beginning of a prompt, so that its prefix cache can be used again.

Holds hashes of prompts, never prompts, and a bounded number of them. Knows nothing about load.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

from enginewire import v1 as pb

T = TypeVar("T")

# Prompts are compared in blocks, as prefix caches compare them; a shorter prompt has no affinity.
BLOCK_TOKENS: Final = 16
# Beyond this a longer common prefix makes no difference; it bounds what one prompt costs.
MAX_BLOCKS: Final = 512
MAX_ENTRIES: Final = 65_536

# One number per full block, each for the whole prompt up to there.
PrefixChain = Sequence[int]


def prefix_chain(request: pb.PreprocessedRequest) -> PrefixChain:
    """Equal beginnings of prompts that may share a cache have equal numbers; nothing without a cache."""
    if request.bypass_prefix_cache:
        return ()
    number = hash((request.model, request.routing.lora_name, request.cache_salt))
    token_ids = request.token_ids[: BLOCK_TOKENS * MAX_BLOCKS]
    chain = []
    for end in range(BLOCK_TOKENS, len(token_ids) + 1, BLOCK_TOKENS):
        number = hash((number, *token_ids[end - BLOCK_TOKENS : end]))
        chain.append(number)
    return chain


class PrefixMemory(Generic[T]):
    """Who served which beginning of a prompt last; the beginnings asked for longest ago are forgotten."""

    def __init__(self, max_entries: int = MAX_ENTRIES) -> None:
        self._max_entries = max_entries
        self._served_by: OrderedDict[int, T] = OrderedDict()

    def __len__(self) -> int:
        return len(self._served_by)

    def remember(self, chain: PrefixChain, who: T) -> None:
        """`who` computes it now."""
        served_by = self._served_by
        # The longest first, so that what many prompts begin with is forgotten last.
        for number in reversed(chain):
            served_by[number] = who
            served_by.move_to_end(number)
        while len(served_by) > self._max_entries:
            served_by.popitem(last=False)

    def find(self, chain: PrefixChain, may_be: Callable[[T], bool]) -> T | None:
        """Who served the longest beginning, of those that `may_be`."""
        for number in reversed(chain):
            who = self._served_by.get(number)
            if who is not None and may_be(who):
                return who
        return None

    def forget(self, who: T) -> None:
        """Nobody finds it here any more."""
        for number in [number for number, each in self._served_by.items() if each is who]:
            del self._served_by[number]
