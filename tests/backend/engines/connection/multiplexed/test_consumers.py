"""Consumers of one call: those that are slow, and how they are woken, in groups and with pauses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

import pytest

from enginewire import v1 as pb
from enginewire.backend.engines.connection import multiplexed
from enginewire.backend.engines.connection.multiplexed import MultiplexedConnection
from enginewire.backend.engines.failure import RequestFailed
from enginewire.backend.engines.stream import EngineStream
from tests.backend.engines.connection.multiplexed.fake_call import (
    FakeCall,
    event,
    failure_of,
    last,
    settle,
    submit,
)
from tests.patience import PATIENCE_SECONDS


async def test_a_consumer_that_never_reads_is_aborted_and_the_rest_goes_on(connection, call):
    slow, other = submit(connection), submit(connection, "r2")
    heavy = pb.LLMEngineOutput(engine_data=b"x" * (2 << 20))
    for _ in range(9):
        assert not slow.ended
        await call.answer(events=[event(1, output=heavy)])
    assert slow.ended
    await call.answer(handles=[1, 2], first_output_positions=[0, 0], token_ids=[4, 5])
    assert [chunk.token_ids for chunk in await other.read()] == [[5]]
    assert (await failure_of(slow)).reason == pb.ERROR_REASON_SLOW_CONSUMER
    assert list(call.written[-1].abort.handles) == [1]


async def test_a_terminal_that_makes_its_consumer_too_slow_ends_the_request_once(connection, call):
    slow = submit(connection)
    heavy = pb.LLMEngineOutput(engine_data=b"x" * (1 << 20))
    final = last(engine_data=b"x" * (1 << 20))
    await call.answer(events=[event(1, output=heavy)] * 8 + [event(1, output=final)])
    assert len(await slow.read()) == 9
    assert (await failure_of(slow)).reason == pb.ERROR_REASON_SLOW_CONSUMER
    assert not connection.is_dead


async def test_a_step_of_many_requests_wakes_them_in_groups_and_forgets_none(connection, call):
    count = 3 * multiplexed.WAKE_GROUP + 1
    streams = [submit(connection, f"r{number}") for number in range(count)]
    begun: list[int] = []

    async def consume(stream: EngineStream) -> list[int]:
        token_ids: list[int] = []
        while len(token_ids) < 2:
            token_ids += [token_id for chunk in await stream.read() for token_id in chunk.token_ids]
            begun.append(sum(each.is_woken for each in streams))
        return token_ids

    consumers = [asyncio.create_task(consume(stream)) for stream in streams]
    await settle()
    for position in range(2):
        columns = {"first_output_positions": [position] * count, "token_ids": [65 + position] * count}
        await call.answer(handles=range(1, count + 1), **columns)
    assert await asyncio.wait_for(asyncio.gather(*consumers), PATIENCE_SECONDS) == [[65, 66]] * count
    # When the first consumer ran, those behind its group had not been woken yet.
    assert begun[0] == count - multiplexed.WAKE_GROUP


class Clock:
    """A time that passes when a test says so; stands in for the module `time`."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


async def two_frames(call: FakeCall, clock: Clock, tokens_per_frame: int) -> None:
    """Each 4 ms after what was before it, with so many tokens of each of 4 streams."""
    for frame in range(2):
        clock.now += 0.004
        first = [frame * tokens_per_frame] * 4
        counts, token_ids = [tokens_per_frame] * 4, [65] * 4 * tokens_per_frame
        await call.answer(
            handles=range(1, 5), first_output_positions=first, token_counts=counts, token_ids=token_ids
        )


@pytest.mark.parametrize(("tokens_per_frame", "num_at_once"), [(1, 8), (3, 4)])
async def test_a_pass_is_followed_by_a_pause_only_when_tokens_come_faster_than_events_can_go(
    call, monkeypatch, tokens_per_frame, num_at_once
):
    """An event takes 1 ms, and a frame comes 4 ms after a pass: time for two events of each of 4 streams."""
    clock = Clock()
    monkeypatch.setattr(multiplexed, "time", clock)
    connection = MultiplexedConnection(lambda: call, max_request_bytes=100_000)
    streams = [submit(connection, f"r{number}") for number in range(4)]
    runs: list[tuple[str, int]] = []

    def take_of(name: str) -> Callable[[int, int, list[int], float], bool]:
        def take(index: int, position: int, token_ids: list[int], arrived_at: float) -> bool:
            clock.now += 0.001
            runs.append((name, len(token_ids)))
            return True

        return take

    consumers = [asyncio.create_task(stream.read(take_of(stream.request_id))) for stream in streams]
    await settle()
    await two_frames(call, clock, tokens_per_frame)
    assert runs == [(f"r{number % 4}", tokens_per_frame) for number in range(num_at_once)]
    await connection.close()
    for consumer in consumers:
        with suppress(RequestFailed):
            await consumer


@pytest.mark.parametrize(("tokens_per_frame", "num_read"), [(1, 8), (3, 4)])
async def test_consumers_that_are_woken_wait_for_the_same_reason(
    call, monkeypatch, tokens_per_frame, num_read
):
    """The same times as above. A pause is one that no test sees the end of."""
    clock = Clock()
    monkeypatch.setattr(multiplexed, "time", clock)
    monkeypatch.setattr(multiplexed, "WAKE_PAUSE_FACTOR", 1e6)
    monkeypatch.setattr(multiplexed, "LONGEST_WAKE_PAUSE_SECONDS", 600.0)
    connection = MultiplexedConnection(lambda: call, max_request_bytes=100_000)
    runs: list[int] = []

    async def consume(stream: EngineStream) -> None:
        while chunks := await stream.read():
            clock.now += 0.001
            runs.extend(len(chunk.token_ids) for chunk in chunks)

    consumers = [asyncio.create_task(consume(submit(connection, f"r{number}"))) for number in range(4)]
    await settle()
    await two_frames(call, clock, tokens_per_frame)
    assert runs == [tokens_per_frame] * num_read
    await connection.close()
    for consumer in consumers:
        with suppress(RequestFailed):
            await consumer
