"""Frames to the engine: what shares one, how large it gets, which handles it has."""

from __future__ import annotations

import pytest

from enginewire import v1 as pb
from enginewire.backend.engines.connection import multiplexed
from enginewire.backend.engines.failure import RequestFailed
from tests.backend.engines.connection.multiplexed.fake_call import event, last, settle, submit


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
