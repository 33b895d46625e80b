"""What vLLM's prefix cache holds, as its events tell it, and the log of it for subscribers.

Reads vLLM's events by the fields named here and imports nothing of it. Lives on the event loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from enginewire.torch_engine.frontend.kv_events import KvEventLog
from enginewire.torch_engine.scheduling.prefix_cache import (
    BlocksRemoved,
    BlocksStored,
    CacheChange,
    CacheCleared,
    public_hash,
)

if TYPE_CHECKING:
    from vllm.distributed.kv_events import AllBlocksCleared, BlockRemoved, BlockStored

PRIVATE: Final = "enginewire.private."
"""Begins the salt of a request whose blocks are nobody else's: they are not told of."""


class CachedBlocks:
    """Blocks that requests can find, by their hashes. `log` has what subscribers get."""

    def __init__(self, block_size: int, medium: str) -> None:
        self.log = KvEventLog(block_size, medium)
        self._block_size = block_size
        self._known: set[int] = set()

    def __len__(self) -> int:
        return len(self._known)

    def take(self, events: Iterable[BlockStored | BlockRemoved | AllBlocksCleared]) -> None:
        """What happened, in order."""
        self.log.append([change for event in events for change in self._changes(event)])

    def clear(self) -> int:
        """Everything is gone; returns how many blocks that were."""
        num_known = len(self._known)
        if num_known:
            self._known.clear()
            self.log.append([CacheCleared()])
        return num_known

    def _changes(self, event: BlockStored | BlockRemoved | AllBlocksCleared) -> Iterator[CacheChange]:
        match type(event).__name__:
            case "BlockStored":
                yield from self._stored(event)
            case "BlockRemoved":
                # vLLM may hold a block twice: its first removal is the last that anybody hears of it.
                gone = [found for each in event.block_hashes if (found := _hash(each)) in self._known]
                self._known.difference_update(gone)
                if gone:
                    yield BlocksRemoved(tuple(gone))
            case "AllBlocksCleared":
                if self._known:
                    self._known.clear()
                    yield CacheCleared()

    def _stored(self, event: BlockStored) -> Iterator[CacheChange]:
        """The blocks that are new: vLLM tells of those that are found again, too."""
        parent = None if event.parent_block_hash is None else _hash(event.parent_block_hash)
        if event.block_size != self._block_size or event.group_idx or _is_private(event):
            return
        for index, block_hash in enumerate(map(_hash, event.block_hashes)):
            if parent is not None and parent not in self._known:
                return  # nobody can find what follows
            if block_hash not in self._known:
                self._known.add(block_hash)
                tokens = event.token_ids[index * self._block_size : (index + 1) * self._block_size]
                yield BlocksStored(parent, (block_hash,), tuple(tokens), _adapter(event.lora_name))
            parent = block_hash


def _hash(block_hash: bytes | int) -> int:
    return public_hash(block_hash) if isinstance(block_hash, bytes) else block_hash


def _is_private(event: BlockStored) -> bool:
    """The first block has the salt; those behind it have a parent that is not known.

    Nor is told what has a picture: its tokens do not say which. vLLM names one by a pair.
    """
    return any(
        not isinstance(key, str) or PRIVATE in key for keys in event.extra_keys or () for key in keys or ()
    )


def _adapter(name: str | None) -> str:
    """As callers know it: vLLM knows each life of it by a number, too."""
    return (name or "").partition(":")[2]
