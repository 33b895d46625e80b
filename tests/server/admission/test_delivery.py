"""Any order of tokens, outputs and ends, read at any pace, arrives complete and in order."""

from __future__ import annotations

import asyncio
import time

import pytest
from hypothesis import given, settings, strategies as st

from enginewire import v1 as pb
from enginewire.server.admission import delivery
from enginewire.server.admission.delivery import BufferLimits, Connection, RequestStream
from enginewire.server.failures import SlowConsumer
from tests.long import examples
from tests.server.serving import Answer, checked_detail, rows, take_event

LIMITS = BufferLimits(tokens=10, seconds=30.0)
# What happens next to a choice: a bare token, an output with tokens; or the reader reads.
ACTS = st.sampled_from(["token", "token", "token", "output", "read"])
SCHEDULES = st.lists(st.tuples(ACTS, st.integers(0, 3), st.integers(0, 2)), max_size=60)


class Choices:
    """Feeds sinks and remembers what each choice was given."""

    def __init__(self) -> None:
        self.given: dict[tuple[int, int], list[int]] = {}
        self.is_unread = False
        self._next_token = 0

    def feed(self, sink: delivery.Sink, act: str, handle: int, index: int) -> None:
        tokens = self.given.setdefault((handle, index), [])
        new = list(range(self._next_token, self._next_token + (1 if act == "token" else 2)))
        self._next_token += len(new)
        if act == "token":
            sink.token(index, len(tokens), new[0])
        else:
            sink.output(pb.LLMEngineOutput(index=index, first_output_position=len(tokens), token_ids=new))
        tokens += new
        self.is_unread = True

    def end(self, sinks: dict[int, delivery.Sink]) -> None:
        for handle, index in self.given:
            finish = pb.FINISH_REASON_LENGTH
            position = len(self.given[handle, index])
            sinks[handle].output(
                pb.LLMEngineOutput(index=index, first_output_position=position, finish_reason=finish)
            )
        for sink in sinks.values():
            sink.finish()


class Frames:
    """Reads a connection step by step, or to its end."""

    def __init__(self, connection: Connection) -> None:
        self._frames = connection.frames()
        self.answers: dict[int, Answer] = {}

    async def read(self) -> pb.GenerateMultiplexedResponse:
        frame = await anext(self._frames)
        for handle, output in rows(frame):
            self.answers.setdefault(handle, Answer()).outputs.append(output)
        for event in frame.events:
            take_event(self.answers, event)
        return frame

    async def read_all(self) -> dict[int, Answer]:
        while True:
            try:
                await self.read()
            except StopAsyncIteration:
                return self.answers


def connection(limits: BufferLimits = LIMITS) -> Connection:
    return Connection(limits, lambda: 0)


@given(SCHEDULES)
def test_a_connection_gives_every_choice_its_tokens_in_order_whatever_the_reader_does(schedule):
    async def play() -> None:
        opened, choices = connection(), Choices()
        sinks = {handle: opened.sink(handle) for handle in range(4)}
        frames = Frames(opened)
        for act, handle, index in schedule:
            if act != "read":
                choices.feed(sinks[handle], act, handle, index)
            elif choices.is_unread:
                choices.is_unread = False
                await frames.read()
        choices.end(sinks)
        opened.close()
        answers = await frames.read_all()
        for (handle, index), tokens in choices.given.items():
            assert answers[handle].tokens(index) == tokens
            assert answers[handle].finishes()[index] == pb.FINISH_REASON_LENGTH

    asyncio.run(play())


@given(SCHEDULES)
def test_a_request_stream_gives_every_choice_its_tokens_in_order_whatever_the_reader_does(schedule):
    async def play() -> None:
        stream, choices, answer = RequestStream(LIMITS), Choices(), Answer()
        reading = stream.read()
        for act, _, index in schedule:
            if act != "read":
                choices.feed(stream, act, 0, index)
            elif choices.is_unread:
                choices.is_unread = False
                answer.outputs.append(await anext(reading))
        choices.end({0: stream})
        answer.outputs += [output async for output in reading]
        for (_, index), tokens in choices.given.items():
            assert answer.tokens(index) == tokens
            assert answer.finishes()[index] == pb.FINISH_REASON_LENGTH

    asyncio.run(play())


@settings(max_examples=examples(30))
@given(st.lists(st.integers(0, 5), max_size=30))
def test_frames_are_cut_before_they_grow_too_large(handles):
    async def play() -> None:
        opened, choices = connection(), Choices()
        sinks = {handle: opened.sink(handle) for handle in range(6)}
        for handle in handles:
            choices.feed(sinks[handle], "token", handle, 0)
        for sink in sinks.values():
            sink.finish()
        opened.close()
        sizes, found = [], Answer()
        async for frame in opened.frames():
            sizes.append(len(frame.token_ids))
            found.outputs += [output for handle, output in rows(frame) if handle == 0]
        assert max(sizes, default=0) <= 4
        assert sum(sizes) == len(handles)
        assert found.tokens() == choices.given.get((0, 0), [])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(delivery, "FRAME_ROWS", 4)
        asyncio.run(play())


async def test_a_lagging_reader_gets_several_steps_in_one_frame_with_longer_runs():
    opened = connection()
    sink = opened.sink(7)
    for position in range(5):
        sink.token(0, position, 100 + position)
    frame = await Frames(opened).read()
    assert list(frame.handles) == [7]
    assert list(frame.token_counts) == [5]
    assert list(frame.token_ids) == [100, 101, 102, 103, 104]


async def test_a_reader_that_keeps_up_gets_one_token_per_row_without_counts():
    opened = connection()
    sinks = [opened.sink(handle) for handle in range(3)]
    for sink in sinks:
        sink.token(0, 0, 9)
    frame = await Frames(opened).read()
    assert list(frame.handles) == [0, 1, 2]
    assert not frame.token_counts
    assert not frame.indexes


async def test_choices_of_one_request_are_rows_without_counts():
    opened = connection()
    sink = opened.sink(1)
    for index in range(2):
        sink.token(index, 0, 9 + index)
    frame = await Frames(opened).read()
    assert (list(frame.handles), list(frame.indexes), list(frame.token_ids)) == ([1, 1], [0, 1], [9, 10])
    assert not frame.token_counts


async def test_large_events_do_not_share_a_frame():
    opened = connection()
    sink = opened.sink(1)
    for _ in range(3):
        sink.output(pb.LLMEngineOutput(engine_data=bytes(delivery.FRAME_EVENT_BYTES)))
    frames = Frames(opened)
    assert [len((await frames.read()).events) for _ in range(3)] == [1, 1, 1]


async def test_a_large_event_has_a_frame_of_its_own():
    opened = connection()
    small, large = opened.sink(1), opened.sink(2)
    small.token(0, 0, 9)
    small.output(pb.LLMEngineOutput(first_output_position=1, engine_data=b"{}"))
    large.token(0, 0, 8)
    large.output(pb.LLMEngineOutput(first_output_position=1, engine_data=bytes(delivery.FRAME_EVENT_BYTES)))
    large.token(0, 1, 7)
    frames = Frames(opened)
    read = [await frames.read() for _ in range(3)]
    assert [(list(frame.token_ids), len(frame.events)) for frame in read] == [([9, 8], 1), ([], 1), ([7], 0)]


async def test_a_failed_handle_ends_with_its_status_and_may_be_used_again():
    opened = connection()
    sink = opened.sink(3)
    sink.token(0, 0, 9)
    sink.fail(SlowConsumer("too slow"))
    assert 3 not in opened.live
    frame = await Frames(opened).read()
    assert list(frame.token_ids) == [9]
    assert checked_detail(frame.events[0].status).reason == pb.ERROR_REASON_SLOW_CONSUMER


async def test_a_closed_connection_ends_after_its_live_handles():
    opened = connection()
    sink = opened.sink(1)
    opened.close()
    frames = Frames(opened)
    reading = asyncio.create_task(frames.read_all())
    await asyncio.sleep(0)
    assert not reading.done()
    sink.token(0, 0, 9)
    sink.finish()
    assert (await reading)[1].tokens() == [9]


async def test_a_broken_connection_ends_at_once_with_the_failure():
    opened = connection()
    opened.sink(1)
    opened.close(SlowConsumer("broken"))
    with pytest.raises(SlowConsumer):
        await Frames(opened).read()


async def test_a_failed_stream_gives_what_was_queued_and_then_raises():
    stream, found = RequestStream(LIMITS), []
    stream.token(0, 0, 9)
    stream.fail(SlowConsumer("too slow"))

    async def read() -> None:
        async for output in stream.read():
            found.extend(output.token_ids)

    with pytest.raises(SlowConsumer):
        await read()
    assert found == [9]


def fill(sink: delivery.Sink, tokens: int) -> None:
    for position in range(tokens):
        sink.token(0, position, 9)


@pytest.mark.parametrize(("tokens", "is_slow"), [(0, False), (10, False), (11, True)])
async def test_a_reader_is_slow_when_more_tokens_wait_than_are_allowed(tokens, is_slow):
    stream, opened = RequestStream(LIMITS), connection()
    sink = opened.sink(1)
    fill(stream, tokens)
    fill(sink, tokens)
    assert stream.is_slow(time.monotonic()) == sink.is_slow(time.monotonic()) == is_slow


async def test_outputs_that_are_events_count_towards_the_lag():
    stream, opened = RequestStream(LIMITS), connection()
    sink = opened.sink(1)
    for target in (stream, sink):
        target.output(pb.LLMEngineOutput(token_ids=range(11)))
        assert target.is_slow(time.monotonic())


async def test_each_request_of_a_connection_may_lag_by_the_limit():
    opened = connection()
    sinks = [opened.sink(handle) for handle in range(3)]
    fill(sinks[0], 30)
    assert not sinks[0].is_slow(time.monotonic())
    fill(sinks[1], 1)
    assert sinks[0].is_slow(time.monotonic())


async def test_a_reader_is_slow_when_it_takes_nothing_for_too_long():
    stream = RequestStream(LIMITS)
    assert not stream.is_slow(time.monotonic() + 1000)
    stream.token(0, 0, 9)
    assert not stream.is_slow(time.monotonic() + 29)
    assert stream.is_slow(time.monotonic() + 31)


async def test_a_reader_that_catches_up_is_not_slow_any_more():
    stream, opened = RequestStream(LIMITS), connection()
    fill(stream, 11)
    fill(opened.sink(1), 11)
    await anext(stream.read())
    await Frames(opened).read()
    assert not stream.is_slow(time.monotonic() + 1000)
    assert not opened.is_slow(time.monotonic() + 1000)
