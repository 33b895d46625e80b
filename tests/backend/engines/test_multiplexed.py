"""One multiplexed call without a network: frames in both directions, handles, ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress

import grpc
import pytest

from enginewire import v1 as pb
from enginewire.backend.engines import multiplexed
from enginewire.backend.engines.failure import RequestFailed, failed
from enginewire.backend.engines.multiplexed import MultiplexedConnection
from enginewire.backend.engines.stream import EngineStream
from tests.backend.our_processes import PATIENCE_SECONDS

GONE = grpc.aio.AioRpcError(
    grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata(), "Socket closed"
)


class FakeCall:
    """A call whose frames a test writes and reads."""

    def __init__(self) -> None:
        self.written: list[pb.GenerateMultiplexedRequest] = []
        self.may_write = asyncio.Event()
        self.may_write.set()
        self.frames: asyncio.Queue[bytes | Exception | None] = asyncio.Queue()
        self.is_cancelled = False

    async def write(self, data: bytes) -> None:
        await self.may_write.wait()
        self.written.append(pb.GenerateMultiplexedRequest.FromString(data))

    def cancel(self) -> None:
        self.is_cancelled = True

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._read()

    async def _read(self) -> AsyncIterator[bytes]:
        while (frame := await self.frames.get()) is not None:
            if isinstance(frame, Exception):
                raise frame
            yield frame

    async def answer(self, **fields: object) -> None:
        """One frame from the engine, taken."""
        self.frames.put_nowait(pb.GenerateMultiplexedResponse(**fields).SerializeToString())
        await settle()


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.fixture
async def call() -> FakeCall:
    return FakeCall()


@pytest.fixture
async def connection(call: FakeCall) -> AsyncIterator[MultiplexedConnection]:
    made = MultiplexedConnection(lambda: call, max_request_bytes=100_000)
    yield made
    await made.close()


def submit(
    connection: MultiplexedConnection, request_id: str = "r1", *, n: int = 1, size: int = 0, **fields: object
) -> EngineStream:
    request = pb.PreprocessedRequest(token_ids=[1] * size, **fields)
    request.sampling_options.n = n
    return connection.submit(pb.GenerateRequest(request_id=request_id, request=request), None, {})


def event(handle: int, **fields: object) -> pb.HandleEvent:
    return pb.HandleEvent(handle=handle, **fields)


def last(index: int = 0, **fields: object) -> pb.LLMEngineOutput:
    return pb.LLMEngineOutput(index=index, finish_reason=pb.FINISH_REASON_LENGTH, **fields)


async def failure_of(stream: EngineStream) -> RequestFailed:
    async def read_all() -> None:
        while await stream.read():
            pass

    with pytest.raises(RequestFailed) as caught:
        await asyncio.wait_for(read_all(), PATIENCE_SECONDS)
    return caught.value


async def test_rows_go_to_their_requests_in_runs(connection, call):
    first, second = submit(connection), submit(connection, "r2")
    await call.answer(
        handles=[1, 2, 1],
        indexes=[0, 0, 1],
        token_counts=[2, 1, 3],
        first_output_positions=[0, 5, 7],
        token_ids=[10, 11, 20, 12, 13, 14],
    )
    found = [(c.index, c.first_output_position, c.token_ids) for c in await first.read()]
    assert found == [(0, 0, [10, 11]), (1, 7, [12, 13, 14])]
    assert [(c.index, c.first_output_position, c.token_ids) for c in await second.read()] == [(0, 5, [20])]


async def test_empty_columns_mean_one_token_of_choice_zero(connection, call):
    stream = submit(connection)
    await call.answer(handles=[1, 1], first_output_positions=[0, 1], token_ids=[7, 8])
    assert [chunk.token_ids for chunk in await stream.read()] == [[7, 8]]


async def test_a_request_ends_with_the_terminal_of_its_last_choice(connection, call):
    stream = submit(connection, n=2)
    await call.answer(events=[event(1, output=last(0))])
    assert not stream.ended
    await call.answer(events=[event(1, output=last(0)), event(1, output=last(5))])
    assert not stream.ended
    await call.answer(events=[event(1, output=last(1))])
    assert stream.ended
    assert len(await stream.read()) == 4
    assert await stream.read() == []


async def test_choices_that_were_finished_before_a_resume_do_not_end_again(connection, call):
    resume = pb.Resume(choices=[pb.ResumedChoice(index=1, finished=True)])
    stream = submit(connection, n=2, resume=resume)
    await call.answer(events=[event(1, output=last(0))])
    assert stream.ended


async def test_a_status_ends_one_request_and_not_the_others(connection, call):
    refused, other = submit(connection), submit(connection, "r2")
    status = failed(grpc.StatusCode.NOT_FOUND, pb.ERROR_REASON_MODEL_NOT_FOUND, "no", field="model").status
    await call.answer(events=[event(1, status=status)])
    assert (await failure_of(refused)).failure.field == "model"
    assert not other.ended
    assert not connection.is_dead


@pytest.mark.parametrize(
    "columns",
    [
        {"handles": [1, 1], "first_output_positions": [0], "token_ids": [1, 2]},
        {"handles": [1], "first_output_positions": [0, 1], "token_ids": [1]},
        {"handles": [1], "first_output_positions": [], "token_ids": [1]},
        {"handles": [1], "first_output_positions": [0], "token_ids": [1, 2]},
        {"handles": [1], "first_output_positions": [0], "token_ids": []},
        {"handles": [1], "first_output_positions": [0], "token_ids": [1], "indexes": [0, 0]},
        {"handles": [1], "first_output_positions": [0], "token_ids": [1], "token_counts": [1, 0]},
        {"handles": [1], "first_output_positions": [0], "token_ids": [1], "token_counts": [4294967295]},
    ],
)
async def test_columns_of_unequal_length_fail_every_request_with_a_violation(connection, call, columns):
    streams = [submit(connection), submit(connection, "r2")]
    await call.answer(**columns)
    for stream in streams:
        assert (await failure_of(stream)).reason == pb.ERROR_REASON_PROTOCOL_VIOLATION
    assert connection.is_dead
    assert call.is_cancelled


@pytest.mark.parametrize(
    "frame",
    [
        {"handles": [0], "first_output_positions": [0], "token_ids": [1]},
        {"handles": [3], "first_output_positions": [0], "token_ids": [1]},
        {"events": [event(3, output=last())]},
        {"events": [event(0)]},
    ],
)
async def test_a_handle_that_was_never_used_is_a_violation(connection, call, frame):
    streams = [submit(connection), submit(connection, "r2")]
    await call.answer(**frame)
    for stream in streams:
        assert "never used" in str(await failure_of(stream))


async def test_what_is_still_on_its_way_for_a_request_that_ended_is_dropped(connection, call):
    aborted, ended = submit(connection), submit(connection, "r2")
    aborted.abort("left")
    await call.answer(events=[event(2, output=last())])
    await call.answer(
        handles=[1, 2],
        first_output_positions=[0, 0],
        token_ids=[1, 2],
        events=[event(1, output=last()), event(2, output=last())],
    )
    assert not connection.is_dead
    assert len(await ended.read()) == 1


async def test_a_request_that_ended_in_a_broken_frame_is_woken_too(connection, call):
    ended, other = submit(connection), submit(connection, "r2")
    reading = asyncio.create_task(ended.read())
    await settle()
    await call.answer(events=[event(1, output=last()), event(9, output=last())])
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert len(await reading) == 1
    assert await ended.read() == []
    assert "never used" in str(await failure_of(other))


@pytest.mark.parametrize(
    ("end", "reason", "is_retryable"),
    [
        (None, pb.ERROR_REASON_STREAM_INCOMPLETE, True),
        (GONE, pb.ERROR_REASON_ENGINE_DEAD, True),
        (b"\xff", pb.ERROR_REASON_PROTOCOL_VIOLATION, False),
    ],
)
async def test_however_the_call_ends_every_request_fails_once(connection, call, end, reason, is_retryable):
    streams = [submit(connection, str(number)) for number in range(3)]
    call.frames.put_nowait(end)
    for stream in streams:
        found = await failure_of(stream)
        assert (found.reason, found.retryable) == (reason, is_retryable)
    assert connection.is_dead


async def test_an_unexpected_error_in_the_reader_leaves_nobody_waiting(call):
    connection = MultiplexedConnection(lambda: call, 1000)
    stream = submit(connection)
    call.frames.put_nowait(RuntimeError("a bug"))
    assert (await failure_of(stream)).reason == pb.ERROR_REASON_STREAM_INCOMPLETE
    await connection.close()


@pytest.mark.parametrize("turns", [0, 10])
async def test_closing_ends_requests_as_cancelled(call, turns):
    connection = MultiplexedConnection(lambda: call, 1000)
    stream = submit(connection)
    for _ in range(turns):
        await asyncio.sleep(0)
    async with asyncio.timeout(PATIENCE_SECONDS):
        await connection.close()
    assert (await failure_of(stream)).reason == pb.ERROR_REASON_CANCELLED
    assert call.is_cancelled


async def test_a_call_on_which_aborts_are_not_answered_is_dead(call):
    connection = MultiplexedConnection(lambda: call, 1000, silence=0.01)
    left, other = submit(connection), submit(connection, "r2")
    await call.answer(handles=[2], first_output_positions=[0], token_ids=[7])
    left.abort("left")
    assert (await failure_of(other)).retryable
    assert connection.is_dead
    assert call.is_cancelled
    await connection.close()


async def test_any_frame_answers_an_abort(call, monkeypatch):
    connection = MultiplexedConnection(lambda: call, 1000, silence=3600.0)
    loop, timers = asyncio.get_running_loop(), []
    call_later = loop.call_later
    monkeypatch.setattr(loop, "call_later", lambda *due: timers.append(call_later(*due)) or timers[-1])
    left, other, third = (submit(connection, name) for name in ("r1", "r2", "r3"))
    left.abort("left")
    third.abort("left, too")
    (due,) = timers
    assert not due.cancelled()
    await call.answer(handles=[2], first_output_positions=[0], token_ids=[7])
    assert due.cancelled()
    other.abort("left at last")
    await connection.close()
    assert all(timer.cancelled() for timer in timers)
    assert len(timers) == 2


async def test_submits_of_one_moment_share_a_frame_and_aborts_follow_them(connection, call):
    streams = [submit(connection, str(number)) for number in range(3)]
    streams[1].abort("left")
    await settle()
    (frame,) = call.written
    assert [sent.generate.request_id for sent in frame.submits] == ["0", "1", "2"]
    assert list(frame.abort.handles) == [2]
    assert frame.abort.reason == "left"
    streams[0].abort("gone")
    await settle()
    assert list(call.written[1].abort.handles) == [1]
    assert not call.written[1].submits


async def test_no_frame_is_larger_than_the_engine_takes(connection, call):
    call.may_write.clear()
    streams = [submit(connection, str(number), size=30_000) for number in range(10)]
    streams[9].abort("left")
    call.may_write.set()
    await settle()
    assert all(frame.ByteSize() <= 100_000 for frame in call.written)
    assert len(call.written) == 4
    sent = [sent.generate.request_id for frame in call.written for sent in frame.submits]
    assert sent == [str(number) for number in range(10)]
    assert [list(frame.abort.handles) for frame in call.written] == [[], [], [], [10]]


async def test_a_request_that_no_frame_can_carry_is_refused_alone(connection, call):
    with pytest.raises(RequestFailed, match="the engine takes 100000") as caught:
        submit(connection, size=100_000)
    assert caught.value.reason == pb.ERROR_REASON_TOO_LARGE
    stream = submit(connection, size=99_900)
    await settle()
    assert call.written[0].ByteSize() <= 100_000
    await call.answer(events=[event(1, output=last())])
    assert stream.ended


async def test_timeout_and_metadata_travel_with_the_submit(connection, call):
    request = pb.GenerateRequest(request_id="r1")
    connection.submit(request, 1.5, {"traceparent": "00-1-2-3"})
    connection.submit(request, -1.0, {})
    connection.submit(request, None, {})
    await settle()
    with_timeout, too_late, without = call.written[0].submits
    assert with_timeout.timeout.ToMilliseconds() == 1500
    assert dict(with_timeout.metadata) == {"traceparent": "00-1-2-3"}
    assert too_late.timeout.ToNanoseconds() == 1
    assert not without.HasField("timeout")


async def test_handles_begin_again_without_meeting_a_live_one(connection, call, monkeypatch):
    monkeypatch.setattr(multiplexed, "MAX_HANDLE", 3)
    streams = [submit(connection, str(number)) for number in range(3)]
    streams[1].abort("left")
    submit(connection, "3")
    await settle()
    handles = [sent.handle for frame in call.written for sent in frame.submits]
    assert handles == [1, 2, 3, 2]


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
    for frame in range(2):
        clock.now += 0.004
        first = [frame * tokens_per_frame] * 4
        counts, token_ids = [tokens_per_frame] * 4, [65] * 4 * tokens_per_frame
        await call.answer(
            handles=range(1, 5), first_output_positions=first, token_counts=counts, token_ids=token_ids
        )
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
    for frame in range(2):
        clock.now += 0.004
        first = [frame * tokens_per_frame] * 4
        counts, token_ids = [tokens_per_frame] * 4, [65] * 4 * tokens_per_frame
        await call.answer(
            handles=range(1, 5), first_output_positions=first, token_counts=counts, token_ids=token_ids
        )
    assert runs == [tokens_per_frame] * num_read
    await connection.close()
    for consumer in consumers:
        with suppress(RequestFailed):
            await consumer
