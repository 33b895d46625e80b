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


class KvMirror:
    """Of one rank. `sequence` is that of the last event, None before the first."""

    def __init__(self) -> None:
        self.sequence: int | None = None
        # Of each block where it is: in one place or in several.
        self._media: dict[int, set[str]] = {}

    def events(self, changes: Iterable[pb.KvEvent]) -> list[Event]:
        """What Dynamo's publisher is to be given, in order."""
        told: list[Event] = []
        for change in changes:
            self.sequence = change.sequence
            which = change.WhichOneof("change")
            if which == "stored":
                told.append(self._stored(change.stored))
            elif which == "removed":
                told += removed(self._gone(change.removed))
            elif which == "cleared":
                told += removed(self._media)
                self._media = {}
        return told

    def _stored(self, stored: pb.KvBlocksStored) -> Event:
        for block in stored.block_hashes:
            self._media.setdefault(block, set()).add(stored.medium)
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

    def _gone(self, change: pb.KvBlocksRemoved) -> list[int]:
        """Those that are nowhere any more."""
        gone = []
        for block in change.block_hashes:
            media = self._media.get(block, set())
            media.discard(change.medium)
            if not media and self._media.pop(block, None) is not None:
                gone.append(block)
        return gone


def removed(hashes: Iterable[int]) -> list[Event]:
    """These blocks are gone, if there are any."""
    signed_hashes = [signed(block) for block in hashes]
    return [{"type": "removed", "block_hashes": signed_hashes}] if signed_hashes else []


def signed(block_hash: int) -> int:
    """The same 64 bits as Dynamo reads them."""
    return block_hash - 2 * SIGN if block_hash >= SIGN else block_hash
