"""An engine's prefix cache as the events that Dynamo's router takes.

Sans-IO. The router knows blocks that come and go, but not a cache that was emptied: so it is remembered
here which blocks it has been told of.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from enginewire import v1 as pb

Event = Mapping[str, object]

SIGN: Final = 1 << 63
# Where the router counts a block as a hit; it is not told of blocks that were moved elsewhere.
MEDIA: Final = frozenset({"", "gpu"})


class KvMirror:
    """Of one rank. `sequence` is that of the last event, None before the first."""

    def __init__(self) -> None:
        self.sequence: int | None = None
        self._hashes: set[int] = set()

    def events(self, changes: Iterable[pb.KvEvent]) -> list[Event]:
        """What Dynamo's publisher is to be given, in order."""
        told: list[Event] = []
        for change in changes:
            self.sequence = change.sequence
            which = change.WhichOneof("change")
            if which == "stored" and change.stored.medium in MEDIA:
                told.append(self._stored(change.stored))
            elif which == "removed" and change.removed.medium in MEDIA:
                self._hashes.difference_update(change.removed.block_hashes)
                told.append(removed(change.removed.block_hashes))
            elif which == "cleared" and self._hashes:
                told.append(removed(self._hashes))
                self._hashes = set()
        return told

    def _stored(self, stored: pb.KvBlocksStored) -> Event:
        self._hashes.update(stored.block_hashes)
        event: dict[str, object] = {
            "type": "stored",
            "token_ids": list(stored.token_ids),
            "num_block_tokens": [stored.block_size] * len(stored.block_hashes),
            "block_hashes": [signed(block) for block in stored.block_hashes],
        }
        if stored.HasField("parent_block_hash"):
            event["parent_hash"] = signed(stored.parent_block_hash)
        if stored.lora_name:
            event["lora_name"] = stored.lora_name
        return event


def removed(hashes: Iterable[int]) -> Event:
    """These blocks are gone."""
    return {"type": "removed", "block_hashes": [signed(block) for block in hashes]}


def signed(block_hash: int) -> int:
    """The same 64 bits as Dynamo reads them."""
    return block_hash - 2 * SIGN if block_hash >= SIGN else block_hash
