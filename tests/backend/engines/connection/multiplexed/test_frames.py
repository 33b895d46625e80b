"""Frames from the engine: rows and events find their requests, and however a call ends, each ends once."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from enginewire import v1 as pb
from enginewire.backend.engines.connection.multiplexed import MultiplexedConnection
from enginewire.backend.engines.failure import failed
from tests.backend.engines.connection.multiplexed.fake_call import event, failure_of, last, settle, submit
from tests.patience import PATIENCE_SECONDS

GONE = grpc.aio.AioRpcError(
    grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata(), "Socket closed"
)


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
