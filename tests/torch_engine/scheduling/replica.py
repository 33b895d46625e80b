"""What a subscriber of cache changes knows, checked while it is told."""

from __future__ import annotations

from collections.abc import Iterable

from enginewire import v1 as pb
from enginewire.torch_engine.scheduling.prefix_cache import (
    BlocksRemoved,
    BlocksStored,
    CacheChange,
    CacheCleared,
)


class Replica:
    """Block hashes and the tokens behind each; every change must make sense."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.tokens: dict[int, tuple[int, ...]] = {}
        self.parents: dict[int, int | None] = {}
        self.sequence: int | None = None
        self._in_snapshot = False

    def apply(self, changes: Iterable[CacheChange]) -> None:
        for change in changes:
            if isinstance(change, BlocksStored):
                self._store(change.parent, change.hashes, change.token_ids)
            elif isinstance(change, BlocksRemoved):
                self._remove(change.hashes)
            else:
                assert isinstance(change, CacheCleared)
                self.tokens.clear()

    def read(self, events: Iterable[pb.KvEvent]) -> None:
        """Events of the wire; within a snapshot the number stays, after it it grows by one."""
        for event in events:
            continues = self._in_snapshot and event.sequence == self.sequence
            self._in_snapshot = event.HasField("cleared") or continues
            assert self._in_snapshot or self.sequence is None or event.sequence == self.sequence + 1
            self.sequence = event.sequence
            stored = event.stored
            if event.HasField("stored"):
                assert stored.block_size == self.block_size
                parent = stored.parent_block_hash if stored.HasField("parent_block_hash") else None
                self._store(parent, stored.block_hashes, stored.token_ids)
            elif event.HasField("removed"):
                self._remove(event.removed.block_hashes)
            else:
                self.tokens.clear()

    def _store(self, parent: int | None, hashes: Iterable[int], token_ids: Iterable[int]) -> None:
        assert parent is None or parent in self.tokens
        tokens, hashes = list(token_ids), list(hashes)
        assert len(tokens) == len(hashes) * self.block_size
        assert hashes
        for index, block_hash in enumerate(hashes):
            assert block_hash not in self.tokens, "stored twice"
            self.tokens[block_hash] = tuple(tokens[index * self.block_size : (index + 1) * self.block_size])
            self.parents[block_hash] = parent
            parent = block_hash

    def _remove(self, hashes: Iterable[int]) -> None:
        for block_hash in hashes:
            del self.tokens[block_hash]
