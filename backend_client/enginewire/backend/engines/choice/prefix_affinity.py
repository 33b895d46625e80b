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
# Behind the first blocks only each fourth end is compared: a few tokens more or less save no time.
FINE_BLOCKS: Final = 4
COARSE_BLOCKS: Final = 4
# Beyond this a longer common prefix makes no difference; it bounds what one prompt costs.
MAX_BLOCKS: Final = 512
_FINE, _COARSE = FINE_BLOCKS * BLOCK_TOKENS, COARSE_BLOCKS * BLOCK_TOKENS
ENDS: Final = (
    *range(BLOCK_TOKENS, _FINE + 1, BLOCK_TOKENS),
    *range(_FINE + _COARSE, MAX_BLOCKS * BLOCK_TOKENS + 1, _COARSE),
)
# About 60 MB. Together they stand for nearly a million blocks, the caches of some forty large engines.
MAX_ENTRIES: Final = 262_144
# Of a beginning that many engines have, the ones that got it last.
MAX_HOLDERS: Final = 16

# One number for the prompt up to each end, the shortest first.
PrefixChain = Sequence[int]


def prefix_chain(request: pb.PreprocessedRequest) -> PrefixChain:
    """Equal beginnings of prompts that may share a cache have equal numbers; nothing without a cache."""
    if request.bypass_prefix_cache:
        return ()
    number = hash((request.model, request.routing.lora_name, request.cache_salt))
    token_ids = request.token_ids[: BLOCK_TOKENS * MAX_BLOCKS]
    chain, begin = list[int](), 0
    for end in ENDS:
        if end > len(token_ids):
            break
        number = hash((number, *token_ids[begin:end]))
        chain.append(number)
        begin = end
    return chain


class PrefixMemory(Generic[T]):
    """Who served which beginning of a prompt lately; those asked for longest ago are forgotten."""

    def __init__(self, max_entries: int = MAX_ENTRIES) -> None:
        self._max_entries = max_entries
        self._holders: OrderedDict[int, tuple[T, ...]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._holders)

    def remember(self, chain: PrefixChain, who: T) -> None:
        """`who` computes it now."""
        all_holders = self._holders
        # The longest first, so that what many prompts begin with is forgotten last.
        for number in reversed(chain):
            holders = all_holders.get(number, ())
            if who not in holders:
                all_holders[number] = (who, *holders[: MAX_HOLDERS - 1])
            all_holders.move_to_end(number)
        while len(all_holders) > self._max_entries:
            all_holders.popitem(last=False)

    def find(self, chain: PrefixChain, may_be: Callable[[T], bool]) -> Sequence[T]:
        """Who of those that `may_be` have served the longest beginning."""
        for number in reversed(chain):
            if found := [who for who in self._holders.get(number, ()) if may_be(who)]:
                return found
        return ()

    def forget(self, who: T) -> None:
        """Nobody finds it here any more."""
        for number, holders in list(self._holders.items()):
            if who not in holders:
                continue
            if others := tuple(each for each in holders if each is not who):
                self._holders[number] = others
            else:
                del self._holders[number]
