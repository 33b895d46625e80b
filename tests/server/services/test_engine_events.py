"""Events of engines: who gets them, in which place, and how many of them wait for a reader."""

from __future__ import annotations

import asyncio
import logging

import pytest
from hypothesis import given, strategies as st

from enginewire import v1 as pb
from enginewire.server.admission.delivery import BYTES_PER_TOKEN, BufferLimits, Connection, RequestStream
from enginewire.server.admission.live import MAX_EVENT_BYTES, MAX_EVENTS, Live, event_names
from enginewire.server.engines.interface import GenerateContext, StepOutputs
from enginewire.server.engines.iterator_driver import IteratorDriver
from tests.server.engines.test_iterator_driver import LENGTH, ScriptedEngine, token
from tests.server.serving import Answer, ask, rows, submit, until_true

LIMITS = BufferLimits(tokens=100, seconds=30.0)
# (what happens next, to which request, to which of its choices)
SCHEDULES = st.lists(
    st.tuples(
        st.sampled_from(["token", "token", "output", "event", "read"]), st.integers(0, 2), st.integers(0, 2)
    ),
    max_size=60,
)


class Feed:
    """Gives sinks tokens, outputs and events that are numbered per request, and remembers what was given."""

    def __init__(self) -> None:
        self.given: dict[int, list[tuple[int, int]]] = {}
        self._tokens: dict[tuple[int, int], int] = {}
        self.is_unread = False

    def feed(self, sink, act: str, handle: int, index: int) -> None:
        given = self.given.setdefault(handle, [])
        position = self._tokens.get((handle, index), 0)
        self.is_unread = True
        if act == "event":
            sink.engine_event(pb.EngineEvent(event="e", id=str(len(given))))
            given.append((-1, len(given)))
            return
        if act == "token":
            sink.token(index, position, position)
        else:
            row = pb.Logprobs(token_logprobs=[0.0])
            sink.output(
                pb.LLMEngineOutput(
                    index=index, first_output_position=position, token_ids=[position], logprobs=row
                )
            )
        given.append((index, position))
        self._tokens[handle, index] = position + 1


def order_kept(given: list[tuple[int, int]], seen: list[tuple[int, int]]) -> bool:
    """What a request was given has the same order for each choice, and around each event."""
    for index in range(3):
        if [each for each in given if each[0] in (-1, index)] != [
            each for each in seen if each[0] in (-1, index)
        ]:
            return False
    return True


def of_item(item: pb.LLMEngineOutput | pb.EngineEvent) -> list[tuple[int, int]]:
    if isinstance(item, pb.EngineEvent):
        return [(-1, int(item.id))]
    return [(item.index, token_id) for token_id in item.token_ids]


@given(SCHEDULES)
def test_events_keep_their_places_on_a_connection_whatever_the_reader_does(schedule) -> None:
    async def play() -> None:
        opened, feed = Connection(LIMITS, lambda: 0), Feed()
        sinks = {handle: opened.sink(handle) for handle in range(3)}
        seen: dict[int, list[tuple[int, int]]] = {handle: [] for handle in sinks}
        frames = opened.frames()

        def take(frame: pb.GenerateMultiplexedResponse) -> None:
            for handle, output in rows(frame):
                seen[handle] += of_item(output)
            for event in frame.events:
                seen[event.handle] += of_item(
                    event.output if event.HasField("output") else event.engine_event
                )

        for act, handle, index in schedule:
            if act != "read":
                feed.feed(sinks[handle], act, handle, index)
            elif feed.is_unread:
                feed.is_unread = False
                take(await anext(frames))
        for sink in sinks.values():
            sink.finish()
        opened.close()
        async for frame in frames:
            take(frame)
        for handle, given_here in feed.given.items():
            assert order_kept(given_here, seen[handle])

    asyncio.run(play())


@given(SCHEDULES)
def test_events_keep_their_places_in_a_request_stream_whatever_the_reader_does(schedule) -> None:
    async def play() -> None:
        stream, feed, seen = RequestStream(LIMITS), Feed(), []
        reading = stream.read()

        def take(item) -> None:
            seen.extend(of_item(item))

        for act, _, index in schedule:
            if act != "read":
                feed.feed(stream, act, 0, index)
            elif feed.is_unread:
                feed.is_unread = False
                take(await anext(reading))
        stream.finish()
        async for item in reading:
            take(item)
        assert order_kept(feed.given.get(0, []), seen)

    asyncio.run(play())


async def test_waiting_events_weigh_what_they_are_large() -> None:
    opened, stream = Connection(LIMITS, lambda: 0), RequestStream(LIMITS)
    sink = opened.sink(1)
    small = pb.EngineEvent(event="e")
    large = pb.EngineEvent(event="e", comment=["x" * (LIMITS.tokens * BYTES_PER_TOKEN)])
    for reader in (sink, stream):
        reader.engine_event(small)
        assert not reader.is_slow(0.0)
        reader.engine_event(large)
        assert reader.is_slow(0.0)


def live(*annotations: str) -> tuple[Live, RequestStream]:
    stream = RequestStream(LIMITS)
    context = GenerateContext("r1")
    context.sink = found = Live(context, stream, 1, "", asked_events=event_names(annotations))
    return found, stream


async def names_in(stream: RequestStream) -> list[str]:
    stream.finish()
    return [item.event async for item in stream.read()]


async def test_a_request_gets_the_events_it_asks_for_until_it_has_ended() -> None:
    request, stream = live("plain", "with:a value: and colons", ":")
    for name in ("plain", "with", "other", "", "with:a value"):
        request.engine_event(pb.EngineEvent(event=name))
    request.open_choices = 0
    request.engine_event(pb.EngineEvent(event="plain"))
    assert await names_in(stream) == ["plain", "with"]


async def test_events_beyond_the_limits_are_left_out_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    request, stream = live("a")
    with caplog.at_level(logging.WARNING):
        request.engine_event(pb.EngineEvent(event="a", comment=["x" * MAX_EVENT_BYTES]))
        for _ in range(MAX_EVENTS + 5):
            request.engine_event(pb.EngineEvent(event="a"))
    assert len(await names_in(stream)) == MAX_EVENTS - 1
    assert len(caplog.records) == 2
    assert all("r1" in record.getMessage() for record in caplog.records)


@pytest.fixture
def generate(engine_server):
    """`await generate(request, is_multiplexed, engine)` is the answer of one request."""

    async def run(request: pb.GenerateRequest, is_multiplexed: bool, engine=None) -> Answer:
        serving = await engine_server(engine)
        if is_multiplexed:
            return (await serving.multiplexed([submit(1, request)]))[1]
        return await serving.generate(request)

    return run


@pytest.mark.parametrize("is_multiplexed", [False, True], ids=["generate", "multiplexed"])
class TestBothRpcs:
    async def test_the_mocker_answers_its_annotation_before_the_first_token(
        self, generate, is_multiplexed: bool
    ) -> None:
        annotations = ["nobody knows this", "echo:a:b", "echo"]
        options = pb.SamplingOptions(n=3)
        answer = await generate(ask(annotations=annotations, sampling_options=options), is_multiplexed)
        expected = [pb.EngineEvent(event="echo", id="r1", comment=[text]) for text in ("a:b", "")]
        assert answer.events == [(0, event) for event in expected]
        assert [len(answer.tokens(index)) for index in range(3)] == [8, 8, 8]

    async def test_a_request_without_annotations_gets_no_event(self, generate, is_multiplexed: bool) -> None:
        async def talkative(request, context):
            yield pb.EngineEvent(event="echo")
            yield token(0, LENGTH)

        answer = await generate(ask(), is_multiplexed, IteratorDriver(ScriptedEngine(talkative)))
        assert answer.events == []
        assert answer.finishes() == {0: LENGTH}

    async def test_events_of_an_iterator_stay_between_its_outputs(
        self, generate, is_multiplexed: bool
    ) -> None:
        async def script(request, context):
            yield pb.EngineEvent(event="a", id="first")
            yield token(0)
            yield pb.EngineEvent(event="a", id="between")
            yield pb.EngineEvent(event="a", id="again")
            yield token(1)
            yield token(2, LENGTH)
            yield pb.EngineEvent(event="a", id="late")

        answer = await generate(
            ask(annotations=["a"]), is_multiplexed, IteratorDriver(ScriptedEngine(script))
        )
        assert [(place, event.id) for place, event in answer.events] == [
            (0, "first"),
            (1, "between"),
            (1, "again"),
        ]
        assert answer.tokens() == [7, 7, 7]


async def test_one_turn_of_a_stream_engine_may_hold_several_steps() -> None:
    steps: list[StepOutputs] = []

    async def script(request, context):
        yield token(0)
        yield pb.EngineEvent(event="a")
        yield token(1, LENGTH)

    driver = IteratorDriver(ScriptedEngine(script))
    driver.set_step_listener(steps.append)
    driver.submit(pb.PreprocessedRequest(token_ids=[1]), GenerateContext("r1"))
    await until_true(lambda: any(output.finish_reason for step in steps for _, output in step.outputs))
    assert [(len(step.events), len(step.outputs)) for step in steps] == [(0, 1), (1, 1)]
    assert [step.step for step in steps] == [1, 2]
