"""Servers whose KV events lead subscribers astray."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import count

from enginewire import v1 as pb
from enginewire.conformance.mutants import changed, mutant
from enginewire.conformance.reference.generation.engine import BlockKey
from enginewire.conformance.reference.generation.job import Job
from enginewire.conformance.reference.server import Reference
from enginewire.conformance.reference.settings import Settings

MOST_UNREAD = 64
LARGE = 4096


@mutant("kv_sources_change", kills=("KVE-01", "KVE-01/after-load"))
class KvSourcesChange(Reference):
    def __init__(self) -> None:
        super().__init__()
        self._answers = count()

    async def kv_event_sources(self) -> pb.GetKvEventSourcesResponse:
        response = await super().kv_event_sources()
        response.sources[0].topic = f"kv-{next(self._answers)}"
        return response


@mutant("wildcard", kills="KVE-02")
class Wildcard(Reference):
    settings = replace(Settings(), capabilities=("kv_events",))

    async def kv_event_sources(self) -> pb.GetKvEventSourcesResponse:
        response = await super().kv_event_sources()
        response.sources[0].endpoint = "tcp://*:5557"
        return response


@mutant("rank_twice", kills="KVE-02")
class RankTwice(Reference):
    async def kv_event_sources(self) -> pb.GetKvEventSourcesResponse:
        response = await super().kv_event_sources()
        response.sources.append(response.sources[0])
        return response


@mutant("seq_gap", kills="KVE-03")
class SeqGap(Reference):
    def publish(self, event: pb.KvEvent) -> None:
        super().publish(event)
        self.sequence += 1

    def is_kept(self, sequence: int) -> bool:
        return False


@mutant("seq_repeat", kills="KVE-03")
class SeqRepeat(Reference):
    def publish(self, event: pb.KvEvent) -> None:
        super().publish(event)
        if event.HasField("stored") and self.sequence % 2:
            self.events[-1].sequence -= 1


@mutant("snapshot_has_the_number_to_come", kills="KVE-03")
class SnapshotHasTheNumberToCome(Reference):
    """That of the first change behind it."""

    def snapshot(self) -> list[pb.SubscribeKvEventsResponse]:
        messages = super().snapshot()
        for event in (event for message in messages for event in message.events):
            event.sequence += 1
        return messages


@mutant("snapshots_have_no_order", kills="KVE-04")
class SnapshotsHaveNoOrder(Reference):
    """Children may come before their parents."""

    def snapshot(self) -> list[pb.SubscribeKvEventsResponse]:
        messages = super().snapshot()
        for message in messages:
            events = sorted(message.events, key=lambda event: event.stored.block_hashes[:])
            del message.events[:]
            message.events.extend(events)
        return messages


@mutant("snapshots_have_no_parents", kills="KVE-04")
class SnapshotsHaveNoParents(Reference):
    def snapshot(self) -> list[pb.SubscribeKvEventsResponse]:
        messages = super().snapshot()
        for event in (event for message in messages for event in message.events):
            if event.HasField("stored"):
                event.stored.ClearField("parent_block_hash")
        return messages


@mutant("snapshots_leave_out_what_is_old", kills="KVE-05")
class SnapshotsLeaveOutWhatIsOld(Reference):
    """The first blocks of a prompt, and those behind them, are all that they begin with."""

    def snapshot(self) -> list[pb.SubscribeKvEventsResponse]:
        (first, *_) = super().snapshot()
        return [pb.SubscribeKvEventsResponse(events=first.events[:2])]


@mutant("tokens_of_blocks_are_the_first_ones", kills="KVE-04")
class TokensOfBlocksAreTheFirstOnes(Reference):
    """Of the prompt, also where they go on behind blocks that are cached."""

    def stored(self, keys: list[BlockKey]) -> pb.KvBlocksStored:
        stored = super().stored(keys)
        stored.token_ids[:] = keys[-1][2][: len(stored.token_ids)]
        return stored


@changed(Reference.stored, "bad_parent", kills="KVE-04")
def bad_parent(stored: pb.KvBlocksStored) -> None:
    if stored.HasField("parent_block_hash"):
        stored.parent_block_hash ^= 1


@mutant("block_without_tokens", kills="KVE-04")
class BlockWithoutTokens(Reference):
    def block_tokens(self, key: BlockKey) -> tuple[int, ...]:
        return super().block_tokens(key)[:-1]


@mutant("subscribers_share_their_place", kills="KVE-03")
class SubscribersShareTheirPlace(Reference):
    """Each change is told to whoever asks first."""

    def __init__(self) -> None:
        super().__init__()
        self._told = 0

    async def subscribe(
        self, request: pb.SubscribeKvEventsRequest
    ) -> AsyncIterator[pb.SubscribeKvEventsResponse]:
        since = self.sequence
        async for message in super().subscribe(request):
            new = [event for event in message.events if not since < event.sequence <= self._told]
            if new:
                self._told = max(self._told, new[-1].sequence)
                yield pb.SubscribeKvEventsResponse(events=new)


@mutant("snapshots_keep_what_was_cleared", kills="KVE-05")
class SnapshotsKeepWhatWasCleared(Reference):
    """Until there is something else."""

    def __init__(self) -> None:
        super().__init__()
        self._before: list[BlockKey] = []

    def clear_cache(self) -> int:
        self._before = sorted(self.cache, key=lambda key: len(key[2]))
        return super().clear_cache()

    def snapshot(self) -> list[pb.SubscribeKvEventsResponse]:
        first, *others = super().snapshot()
        for key in () if self.cache else self._before:
            first.events.add(sequence=self.sequence, stored=self.stored([key]))
        return [first, *others]


@mutant("remove_unknown", kills="KVE-05")
class RemoveUnknown(Reference):
    def remove_block(self, key: BlockKey) -> None:
        del self.cache[key]
        self.publish(pb.KvEvent(removed=pb.KvBlocksRemoved(block_hashes=[self.block_hash(key) ^ 1])))


@mutant("idle_caches_are_cleared_in_silence", kills="KVE-05")
class IdleCachesAreClearedInSilence(Reference):
    def publish(self, event: pb.KvEvent) -> None:
        if self.live or not event.HasField("cleared"):
            super().publish(event)


@mutant("evicts_in_silence", kills="KVE-05")
class EvictsInSilence(Reference):
    def remove_block(self, key: BlockKey) -> None:
        del self.cache[key]


@mutant("replay_ignored", kills="KVE-06")
class ReplayIgnored(Reference):
    async def subscribe(
        self, request: pb.SubscribeKvEventsRequest
    ) -> AsyncIterator[pb.SubscribeKvEventsResponse]:
        if request.HasField("after_sequence"):
            request.after_sequence = self.sequence
        async for message in super().subscribe(request):
            yield message


@mutant("replay_changed", kills="KVE-06")
class ReplayChanged(Reference):
    async def subscribe(
        self, request: pb.SubscribeKvEventsRequest
    ) -> AsyncIterator[pb.SubscribeKvEventsResponse]:
        is_replay = request.HasField("after_sequence") and request.after_sequence <= self.sequence
        async for message in super().subscribe(request):
            if is_replay:
                changed = pb.SubscribeKvEventsResponse(events=message.events)
                for event in changed.events:
                    event.removed.medium = "disk"
                yield changed
            else:
                yield message


@mutant("events_block_engine", kills="KVE-07")
class EventsBlockEngine(Reference):
    def __init__(self) -> None:
        super().__init__()
        self._unread: dict[object, int] = {}

    def stored(self, keys: list[BlockKey]) -> pb.KvBlocksStored:
        stored = super().stored(keys)
        # Fills what lies between the two ends sooner.
        stored.medium = "x" * LARGE
        return stored

    def remove_block(self, key: BlockKey) -> None:
        del self.cache[key]
        removed = pb.KvBlocksRemoved(block_hashes=[self.block_hash(key)], medium="x" * LARGE)
        self.publish(pb.KvEvent(removed=removed))

    def fits(self, job: Job) -> bool:
        behind = [self.sequence - read for read in self._unread.values()]
        return super().fits(job) and max(behind, default=0) <= MOST_UNREAD

    async def subscribe(
        self, request: pb.SubscribeKvEventsRequest
    ) -> AsyncIterator[pb.SubscribeKvEventsResponse]:
        reader = object()
        self._unread[reader] = self.sequence
        try:
            async for message in super().subscribe(request):
                yield message
                self._unread[reader] = message.events[-1].sequence
        finally:
            del self._unread[reader]


@mutant("salt_ignored", kills="KVE-08")
class SaltIgnored(Reference):
    def block_hash(self, key: BlockKey) -> int:
        return super().block_hash(("", *key[1:]))


@mutant("hash_changes", kills="KVE-08")
class HashChanges(Reference):
    def block_hash(self, key: BlockKey) -> int:
        return super().block_hash(key) ^ self._life

    def clear_cache(self) -> int:
        self._life += 1
        return super().clear_cache()

    _life = 0


@mutant("adapter_hash_shared", kills="KVE-08/adapter")
class AdapterHashShared(Reference):
    def block_hash(self, key: BlockKey) -> int:
        return super().block_hash((key[0], "", key[2]))


@mutant("events_unadvertised", kills="ERR-17/kv_events")
class EventsUnadvertised(Reference):
    settings = replace(Settings(), capabilities=("seed",))

    def allows(self, capability: str) -> bool:
        return capability == "kv_events" or super().allows(capability)


@mutant("cleared_is_said_beside_requests", kills="KVE-05")
class ClearedIsSaidBesideRequests(Reference):
    """And nothing is dropped, for it might be in use."""

    def clear_cache(self) -> int:
        if not self.running:
            return super().clear_cache()
        self.publish(pb.KvEvent(cleared=pb.KvCacheCleared()))
        return 0


@mutant("events_to_come_are_waited_for", kills="KVE-06")
class EventsToComeAreWaitedFor(Reference):
    async def subscribe(
        self, request: pb.SubscribeKvEventsRequest
    ) -> AsyncIterator[pb.SubscribeKvEventsResponse]:
        while request.after_sequence > self.sequence:
            await self._changed.wait()
        async for message in super().subscribe(request):
            yield message
