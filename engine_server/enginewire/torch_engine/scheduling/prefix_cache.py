"""The prefix cache: which full KV blocks already hold the tokens that a sequence begins with.

A block is known by the hash of everything up to its end: the hash of the block before it and its own
tokens. Of every cached block the one before it is cached too. Whoever holds the later one holds it as well,
or has released it behind its window, and when nobody holds either, it is given up after the later one. When
it is given up first all the same, what follows it is forgotten, since nobody could find that any more.
Knows nothing about torch, protobuf or who is told of the changes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence as Seq
from dataclasses import dataclass
from hashlib import blake2b

from enginewire.torch_engine.requests.cache_chain import DIGEST_BYTES
from enginewire.torch_engine.requests.sequence import Sequence
from enginewire.torch_engine.scheduling.block_pool import BlockPool


@dataclass(frozen=True, slots=True)
class BlocksStored:
    """Blocks that were added, each the child of the one before it. `parent` is None for a first block."""

    parent: int | None
    hashes: tuple[int, ...]
    token_ids: tuple[int, ...]
    lora_name: str = ""


@dataclass(frozen=True, slots=True)
class BlocksRemoved:
    """Blocks that are cached no longer."""

    hashes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CacheCleared:
    """Nothing is cached any more."""


CacheChange = BlocksStored | BlocksRemoved | CacheCleared


@dataclass(frozen=True, slots=True)
class _Entry:
    digest: bytes
    parent: bytes


def public_hash(digest: bytes) -> int:
    """What others see of a digest: 64 bits of it."""
    return int.from_bytes(digest[:8], "little")


class PrefixCache:
    """Finds and registers full blocks of one pool. Belongs to the thread of its scheduler."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._blocks: dict[bytes, int] = {}
        self._entries: dict[int, _Entry] = {}
        self._children: dict[bytes, set[bytes]] = {}
        self._changes: list[CacheChange] = []
        self.num_queried_tokens = 0
        self.num_hit_tokens = 0
        pool.on_evict = self._on_evict

    def __len__(self) -> int:
        return len(self._blocks)

    def find(self, sequence: Sequence) -> list[int]:
        """The longest run of cached blocks that a sequence begins with and need not compute again."""
        limit = sequence.num_reusable_tokens // self._pool.block_size
        found: list[int] = []
        for digest in self._digests(sequence, limit):
            block = self._blocks.get(digest)
            if block is None:
                break
            found.append(block)
        return found

    def count(self, sequence: Sequence, found: Seq[int]) -> None:
        """A sequence begins with what was found. As in vLLM, only the first time that it runs counts."""
        request = sequence.request
        if sequence.may_copy and request.cache_root is not None and not request.beams:
            self.num_queried_tokens += len(sequence.token_ids)
            self.num_hit_tokens += len(found) * self._pool.block_size

    def register(self, sequence: Sequence) -> None:
        """Keep the full blocks that a sequence has computed since the last time.

        Where another sequence was first with an equal block, this one takes that one and gives its own back.
        """
        if sequence.request.cache_root is None:
            return
        first, end = sequence.num_cached_blocks, sequence.num_computed_tokens // self._pool.block_size
        if first == end:
            return
        digests = self._digests(sequence, end)
        if first and digests[first - 1] not in self._blocks:  # the chain was broken behind a window
            sequence.num_cached_blocks = end
            return
        while first < end and self._adopt(sequence, first, digests[first]):
            first += 1
        self._store(sequence, first, digests[:end])
        sequence.num_cached_blocks = end

    def reset(self) -> int:
        """Forget every block that nobody holds; returns how many those were."""
        idle = self._pool.idle
        self._note_removed([hash_ for block in idle for hash_ in self._drop(block)])
        return len(idle)

    def distrust(self, blocks: Iterable[int]) -> None:
        """Forget blocks that may be broken, and what was built on them, unless someone holds them."""
        broken = set(blocks).intersection(self._pool.idle)
        self._note_removed([hash_ for block in broken for hash_ in self._drop(block)])

    def blocks_of(self, sequence: Sequence) -> list[int]:
        """Those that a sequence holds, and those that it has released and that are still cached."""
        released = sequence.block_digests[: sequence.num_released_blocks]
        return [self._blocks[digest] for digest in released if digest in self._blocks] + sequence.held_blocks

    def sort_idle(self, sequence: Sequence) -> None:
        """What a sequence has released is given up after what followed it, which it has just let go."""
        if sequence.num_released_blocks:
            for digest in reversed(sequence.block_digests[: sequence.num_cached_blocks]):
                if digest in self._blocks:
                    self._pool.give_up_last(self._blocks[digest])

    def take_changes(self) -> list[CacheChange]:
        """What happened since the last call, in order."""
        changes, self._changes = self._changes, []
        return changes

    def _digests(self, sequence: Sequence, count: int) -> Seq[bytes]:
        """The first `count` hashes of the sequence's chain; nothing when it stays out of the cache."""
        root = sequence.request.cache_root
        if root is None:
            return ()
        size, chain = self._pool.block_size, sequence.block_digests
        for start in range(len(chain) * size, count * size, size):
            tokens = struct.pack(f"<{size}I", *sequence.token_ids[start : start + size])
            parent = chain[-1] if chain else root
            chain.append(blake2b(parent + tokens, digest_size=DIGEST_BYTES).digest())
        return chain[:count]

    def _adopt(self, sequence: Sequence, index: int, digest: bytes) -> bool:
        """Exchange a block for the cached one that is equal; False when there is none."""
        known = self._blocks.get(digest)
        if known is None:
            return False
        self._pool.hold([known])
        self._pool.free([sequence.block_table[index]])
        sequence.block_table[index] = known
        return True

    def _store(self, sequence: Sequence, first: int, digests: Seq[bytes]) -> None:
        """Add the blocks from `first` on. None of them is cached, since the first is not."""
        if first == len(digests):
            return
        for index in range(first, len(digests)):
            block, digest = sequence.block_table[index], digests[index]
            assert digest not in self._blocks, "a block is cached without the one before it"
            self._blocks[digest] = block
            parent = digests[index - 1] if index else b""
            self._entries[block] = _Entry(digest, parent)
            self._children.setdefault(parent, set()).add(digest)
            self._pool.keep(block)
        size, adapter = self._pool.block_size, sequence.request.adapter
        self._changes.append(
            BlocksStored(
                parent=public_hash(digests[first - 1]) if first else None,
                hashes=tuple(map(public_hash, digests[first:])),
                token_ids=tuple(sequence.token_ids[first * size : len(digests) * size]),
                lora_name=adapter.name if adapter else "",
            )
        )

    def _drop(self, block: int) -> list[int]:
        """Forget an idle block and all that follow it, if it still is cached; returns the public hashes."""
        if block not in self._entries:
            return []
        self._pool.drop([block])
        return self._forget(block)

    def _note_removed(self, removed: list[int]) -> None:
        if removed:
            self._changes.append(BlocksRemoved(tuple(removed)) if self._blocks else CacheCleared())

    def _on_evict(self, block: int) -> None:
        removed = tuple(self._forget(block))
        if self._changes and isinstance(last := self._changes[-1], BlocksRemoved):
            removed = last.hashes + removed
            self._changes.pop()
        self._changes.append(BlocksRemoved(removed))

    def _forget(self, blank: int) -> list[int]:
        """Remove a block that is blank again, and what follows it; returns the public hashes."""
        first = self._entries[blank]
        self._children[first.parent].remove(first.digest)
        removed: list[int] = []
        doomed = [blank]
        while doomed:
            block = doomed.pop()
            if block != blank:
                self._pool.unkeep(block)
            digest = self._entries.pop(block).digest
            del self._blocks[digest]
            doomed += [self._blocks[child] for child in self._children.pop(digest, ())]
            removed.append(public_hash(digest))
        return removed
