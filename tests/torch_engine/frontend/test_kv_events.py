"""Whoever subscribes, at whatever time, ends up with the engine's cache or is told to begin again."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from enginewire import v1 as pb
from enginewire.server.failures import SlowConsumer
from enginewire.torch_engine.frontend.kv_events import MESSAGE_TOKENS, KvEventLog
from enginewire.torch_engine.scheduling.prefix_cache import BlocksRemoved, BlocksStored, CacheCleared
from tests.torch_engine.scheduling.replica import Replica

SIZE = 2


def chain(*hashes: int, parent: int | None = None) -> BlocksStored:
    return BlocksStored(parent, hashes, tuple(token for h in hashes for token in (h, h + 1)))


def make_log(history_tokens: int = 1 << 20) -> KvEventLog:
    return KvEventLog(SIZE, "cpu", history_tokens)


async def read(log: KvEventLog, after: int | None = None) -> list[pb.KvEvent]:
    """What a new subscriber gets until nothing more has happened."""
    events: list[pb.KvEvent] = []
    stream = log.subscribe(after)
    while True:
        try:
            async with asyncio.timeout(0.01):
                events += (await anext(stream)).events
        except TimeoutError:
            await stream.aclose()
            return events


def kinds(events: list[pb.KvEvent]) -> list[str | None]:
    return [event.WhichOneof("change") for event in events]


async def test_a_snapshot_is_the_cache_under_the_newest_number():
    log = make_log()
    log.append([chain(10, 20), chain(30, parent=20), chain(40, parent=10), BlocksRemoved((40,))])
    events = await read(log)
    assert kinds(events) == ["cleared", "stored"]
    assert len({event.sequence for event in events}) == 1
    stored = events[1].stored
    assert (list(stored.block_hashes), list(stored.token_ids)) == ([10, 20, 30], [10, 11, 20, 21, 30, 31])
    assert not stored.HasField("parent_block_hash")
    assert (stored.block_size, stored.medium) == (SIZE, "cpu")


async def test_what_happens_after_a_snapshot_follows_it_one_by_one():
    log = make_log()
    log.append([chain(10)])
    stream, events = log.subscribe(), []
    for _ in range(2):
        events += (await anext(stream)).events
    log.append([chain(20, parent=10)])
    log.append([BlocksRemoved((20,)), CacheCleared()])
    events += (await anext(stream)).events
    assert kinds(events) == ["cleared", "stored", "stored", "removed", "cleared"]
    first = events[0].sequence
    assert [event.sequence - first for event in events] == [0, 0, 1, 2, 3]
    assert events[3].removed.medium == "cpu"


async def test_a_replay_gives_the_same_events_again():
    log = make_log()
    log.append([chain(10), chain(20, parent=10), BlocksRemoved((20,))])
    newest = (await read(log))[0].sequence
    assert kinds(await read(log, newest - 3)) == ["stored", "stored", "removed"]
    assert await read(log, newest - 3) == await read(log, newest - 3)
    assert [event.sequence for event in await read(log, newest - 1)] == [newest]
    assert await read(log, newest) == []


@pytest.mark.parametrize("after", [0, 1, 2**64 - 1])
async def test_a_number_that_is_not_kept_gives_a_snapshot(after):
    log = make_log()
    log.append([chain(10)])
    assert kinds(await read(log, after)) == ["cleared", "stored"]


async def test_a_number_that_is_too_old_gives_a_snapshot():
    log = make_log(history_tokens=100)
    log.append([chain(10)])
    old = (await read(log))[0].sequence
    log.append([chain(h) for h in range(100, 130)])
    assert kinds(await read(log, old))[0] == "cleared"
    assert len(log._history) == 100 // (16 + SIZE)


async def test_a_subscriber_that_falls_behind_is_told_and_others_are_not_disturbed():
    log = make_log(history_tokens=100)
    log.append([chain(10)])
    slow, quick = log.subscribe(), log.subscribe()
    replica = Replica(SIZE)
    for stream in (slow, quick):
        await anext(stream)
        await anext(stream)
    for block_hash in range(100, 130):
        log.append([chain(block_hash)])
        replica.read((await anext(quick)).events)
    with pytest.raises(SlowConsumer):
        await anext(slow)
    assert set(replica.tokens) == set(range(100, 130))
    await quick.aclose()


async def test_numbers_of_another_life_are_not_mistaken_for_this_one():
    newest = []
    for _ in range(2):
        log = make_log()
        log.append([chain(10)])
        newest.append((await read(log))[0].sequence)
    assert abs(newest[0] - newest[1]) > 10


async def test_large_snapshots_and_replays_come_in_several_messages():
    log = KvEventLog(1024, "gpu")
    tokens = tuple(range(1024))
    log.append([BlocksStored(h - 1 if h > 1 else None, (h,), tokens) for h in range(1, 200)])
    newest = (await read(log))[0].sequence
    for after in (None, newest - 199):
        sizes, replica, stream = [], Replica(1024), log.subscribe(after)
        while len(replica.tokens) < 199:
            message = await anext(stream)
            sizes.append(sum(len(event.stored.token_ids) for event in message.events))
            replica.read(message.events)
        assert len([size for size in sizes if size]) >= 3
        assert max(sizes) <= MESSAGE_TOKENS + 1024
        await stream.aclose()


async def test_closing_ends_every_subscription():
    log = make_log()
    reading = asyncio.create_task(anext(log.subscribe(), None))
    await asyncio.sleep(0)
    assert (await reading).events[0].HasField("cleared")
    stream = log.subscribe()
    await anext(stream)
    waiting = asyncio.create_task(anext(stream, None))
    await asyncio.sleep(0)
    log.close()
    assert await waiting is None


@pytest.mark.parametrize("seed", range(5))
async def test_subscribers_of_any_time_hold_the_same_cache(seed):
    random, log, known = Random(seed), make_log(), [0]
    log.append([chain(0)])
    last: int | None = None
    resumed = Replica(SIZE)
    for block_hash in range(2, 120, 2):
        if random.random() < 0.3 and len(known) > 1:
            log.append([BlocksRemoved((known.pop(),))])
        log.append([chain(block_hash, parent=random.choice(known))])
        known.append(block_hash)
        if random.random() < 0.2:
            resumed.read(await read(log, last))
            last = resumed.sequence
            fresh = Replica(SIZE)
            fresh.read(await read(log))
            assert resumed.tokens == fresh.tokens
            assert set(fresh.tokens) == set(known)
