"""What the prefix cache did, as numbered events for any number of subscribers.

Lives on the event loop. Keeps the newest events for replay and a picture of the cache for snapshots; a
subscriber is only a position among the events, so that a slow one costs nothing and is told when what it
needs next is gone. Knows nothing about gRPC, torch or how blocks are chosen.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import Final

from enginewire import v1 as pb
from enginewire.server.failures import SlowConsumer
from enginewire.torch_engine.scheduling.prefix_cache import (
    BlocksRemoved,
    BlocksStored,
    CacheChange,
    CacheCleared,
)

HISTORY_TOKENS: Final = 1 << 20
"""Token ids that the events kept for replay may hold together."""
MESSAGE_TOKENS: Final = 1 << 16
"""Token ids in one message, give or take one event: about 200 KiB."""
FIRST_SEQUENCE_BITS: Final = 48


class KvEventLog:
    """The events of one rank."""

    def __init__(self, block_size: int, medium: str, history_tokens: int = HISTORY_TOKENS) -> None:
        """`medium` is where the blocks are. Numbers begin anywhere, so that none of an earlier life fits."""
        self._block_size = block_size
        self._medium = medium
        self._history_tokens = history_tokens
        self._stored: dict[int, BlocksStored] = {}
        self._history: dict[int, pb.KvEvent] = {}
        self._num_tokens = 0
        self._first = self._next = 1 + secrets.randbits(FIRST_SEQUENCE_BITS)
        self._changed = asyncio.Event()
        self._is_closed = False

    def append(self, changes: Sequence[CacheChange]) -> None:
        """Number the changes and show them to every subscriber."""
        for change in changes:
            self._apply(change)
            event = self._event(change, self._next)
            self._history[self._next] = event
            self._num_tokens += _weight(event)
            self._next += 1
        while self._num_tokens > self._history_tokens:
            self._num_tokens -= _weight(self._history.pop(self._first))
            self._first += 1
        self._wake()

    def close(self) -> None:
        """End every subscription."""
        self._is_closed = True
        self._wake()

    async def subscribe(
        self, after_sequence: int | None = None
    ) -> AsyncGenerator[pb.SubscribeKvEventsResponse, None]:
        """Events after a number, or a snapshot when they are not kept; then whatever happens.

        Raises SlowConsumer when events that the subscriber has not had are gone.
        """
        position = self._next if after_sequence is None else after_sequence + 1
        if after_sequence is None or not self._first <= position <= self._next:
            position = self._next
            for event in self._snapshot():
                yield pb.SubscribeKvEventsResponse(events=[event])
        while not self._is_closed:
            changed = self._changed
            if events := self._from(position):
                position += len(events)
                yield pb.SubscribeKvEventsResponse(events=events)
            else:
                await changed.wait()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _from(self, position: int) -> list[pb.KvEvent]:
        if position < self._first:
            raise SlowConsumer("the events this subscriber needs next are gone; subscribe again")
        events: list[pb.KvEvent] = []
        weight = 0
        while position < self._next and weight < MESSAGE_TOKENS:
            events.append(self._history[position])
            weight += _weight(events[-1])
            position += 1
        return events

    def _apply(self, change: CacheChange) -> None:
        match change:
            case BlocksStored():
                self._stored.update((block.hashes[0], block) for block in _single(change, self._block_size))
            case BlocksRemoved(hashes):
                for block_hash in hashes:
                    del self._stored[block_hash]
            case CacheCleared():
                self._stored.clear()

    def _snapshot(self) -> list[pb.KvEvent]:
        """The whole cache under the number of the newest change; parents come before their children."""
        number = self._next - 1
        runs = _runs(list(self._stored.values()))
        return [self._event(CacheCleared(), number), *(self._event(run, number) for run in runs)]

    def _event(self, change: CacheChange, number: int) -> pb.KvEvent:
        event = pb.KvEvent(sequence=number)
        match change:
            case BlocksStored(parent, hashes, token_ids, lora_name):
                event.stored.block_hashes.extend(hashes)
                event.stored.token_ids.extend(token_ids)
                event.stored.block_size = self._block_size
                event.stored.medium = self._medium
                event.stored.lora_name = lora_name
                if parent is not None:
                    event.stored.parent_block_hash = parent
            case BlocksRemoved(hashes):
                event.removed.block_hashes.extend(hashes)
                event.removed.medium = self._medium
            case CacheCleared():
                event.cleared.SetInParent()
        return event


def _weight(event: pb.KvEvent) -> int:
    """What an event counts towards a bound, in tokens; even an empty one takes memory."""
    return 16 + len(event.stored.token_ids) + 2 * len(event.removed.block_hashes)


def _single(run: BlocksStored, block_size: int) -> Iterator[BlocksStored]:
    parent = run.parent
    for index, block_hash in enumerate(run.hashes):
        tokens = run.token_ids[index * block_size : (index + 1) * block_size]
        yield BlocksStored(parent, (block_hash,), tokens, run.lora_name)
        parent = block_hash


def _runs(blocks: Sequence[BlocksStored]) -> Iterator[BlocksStored]:
    """Join blocks that follow their parents, up to what fits into one message."""
    begin = 0
    num_tokens = 0
    for index, block in enumerate(blocks):
        continues = index > begin and block.parent == blocks[index - 1].hashes[0]
        if index > begin and not (continues and num_tokens < MESSAGE_TOKENS):
            yield _joined(blocks[begin:index])
            begin, num_tokens = index, 0
        num_tokens += len(block.token_ids)
    if begin < len(blocks):
        yield _joined(blocks[begin:])


def _joined(blocks: Sequence[BlocksStored]) -> BlocksStored:
    return BlocksStored(
        parent=blocks[0].parent,
        hashes=tuple(block.hashes[0] for block in blocks),
        token_ids=tuple(token for block in blocks for token in block.token_ids),
        lora_name=blocks[0].lora_name,
    )
