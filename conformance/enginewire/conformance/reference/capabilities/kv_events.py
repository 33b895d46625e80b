"""KV events of the reference: every change of its prefix cache, numbered, kept for replay."""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import AsyncIterator

from enginewire import v1 as pb
from enginewire.conformance.reference.generation.engine import BlockKey
from enginewire.conformance.reference.refusal import Refusal, invalid
from enginewire.conformance.reference.service import Answer, Service

KEPT_EVENTS = 4096
MESSAGE_EVENTS = 256


class KvEvents(Service):
    """Serves KvService. Sequence numbers begin after the first change."""

    def __init__(self) -> None:
        super().__init__()
        self.events: deque[pb.KvEvent] = deque(maxlen=KEPT_EVENTS)
        self.sequence = 0
        self._changed = asyncio.Event()

    def parts(self) -> dict[str, Answer]:
        """With the RPCs of routers."""
        return {
            **super().parts(),
            "KvService.GetKvEventSources": lambda request, call: self.kv_event_sources(),
            "KvService.SubscribeKvEvents": lambda request, call: self.subscribe(request),
        }

    async def kv_event_sources(self) -> pb.GetKvEventSourcesResponse:
        """This server is the only one."""
        self.require("kv_events")
        return pb.GetKvEventSourcesResponse(sources=[pb.KvEventSource(dp_rank=0)])

    async def subscribe(
        self, request: pb.SubscribeKvEventsRequest
    ) -> AsyncIterator[pb.SubscribeKvEventsResponse]:
        """A snapshot or a replay, then what happens."""
        self.require("kv_events")
        if request.dp_rank:
            raise invalid("dp_rank", "is not served here", request.dp_rank, "0")
        seen = self.sequence
        if request.HasField("after_sequence") and self.is_kept(request.after_sequence):
            seen = request.after_sequence
        else:
            for message in self.snapshot():
                yield message
        while True:
            changed = self._changed
            if new := [event for event in self.events if event.sequence > seen]:
                if new[0].sequence != seen + 1:
                    raise Refusal(pb.ERROR_REASON_SLOW_CONSUMER, "events that were not read are gone")
                seen = new[-1].sequence
                yield pb.SubscribeKvEventsResponse(events=new)
            else:
                await changed.wait()

    def is_kept(self, sequence: int) -> bool:
        """True when everything after an event can be sent again."""
        first = self.events[0].sequence if self.events else self.sequence + 1
        return first - 1 <= sequence <= self.sequence

    def snapshot(self) -> list[pb.SubscribeKvEventsResponse]:
        """The cache as events, in messages of some."""
        events = [pb.KvEvent(sequence=self.sequence, cleared=pb.KvCacheCleared())]
        for key in sorted(self.cache, key=lambda key: len(key[2])):
            events.append(pb.KvEvent(sequence=self.sequence, stored=self.stored([key])))
        starts = range(0, len(events), MESSAGE_EVENTS)
        return [pb.SubscribeKvEventsResponse(events=events[at : at + MESSAGE_EVENTS]) for at in starts]

    def stored(self, keys: list[BlockKey]) -> pb.KvBlocksStored:
        """Blocks of one prompt, each the child of the one before it."""
        size, first = self.settings.block_size, keys[0]
        stored = pb.KvBlocksStored(block_size=size, lora_name=first[1], medium="cpu")
        if len(first[2]) > size:
            stored.parent_block_hash = self.block_hash((*first[:2], first[2][:-size]))
        for key in keys:
            stored.block_hashes.append(self.block_hash(key))
            stored.token_ids.extend(self.block_tokens(key))
        return stored

    def block_tokens(self, key: BlockKey) -> tuple[int, ...]:
        """The tokens of a block alone."""
        return key[2][-self.settings.block_size :]

    def block_hash(self, key: BlockKey) -> int:
        """64 bits of everything a block depends on."""
        return int.from_bytes(hashlib.blake2b(repr(key).encode(), digest_size=8).digest())

    def publish(self, event: pb.KvEvent) -> None:
        """Number an event and show it to every subscriber."""
        self.sequence = event.sequence = self.sequence + 1
        self.events.append(event)
        self._changed.set()
        self._changed = asyncio.Event()

    def add_blocks(self, keys: list[BlockKey]) -> None:
        """Tell it."""
        super().add_blocks(keys)
        if keys:
            self.publish(pb.KvEvent(stored=self.stored(keys)))

    def remove_block(self, key: BlockKey) -> None:
        """Tell it."""
        super().remove_block(key)
        removed = pb.KvBlocksRemoved(block_hashes=[self.block_hash(key)], medium="cpu")
        self.publish(pb.KvEvent(removed=removed))

    def clear_cache(self) -> int:
        """Tell it."""
        self.publish(pb.KvEvent(cleared=pb.KvCacheCleared()))
        return super().clear_cache()
