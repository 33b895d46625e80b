from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc
import pytest

from enginewire import v1 as pb
from enginewire.conformance.reference.capabilities.multiplexed import Frame, Multiplex
from enginewire.conformance.reference.server import Reference
from enginewire.conformance.running.servers.in_process import InProcess
from enginewire.conformance.session.requests import change, good_request
from enginewire.conformance.wire.client import Client
from enginewire.conformance.wire.connection import Connection
from enginewire.conformance.wire.multiplexed import Multiplexed, rows_of
from enginewire.conformance.wire.violation import Violation
from tests.patience import PATIENCE_SECONDS

LENGTH = pb.FINISH_REASON_LENGTH


def request(number: int = 1, **changes: object) -> pb.GenerateRequest:
    return change(good_request(f"r{number}", [5, 6, 7]), **changes)


def output(handle: int, finish: int = 0, index: int = 0) -> pb.HandleEvent:
    event = pb.HandleEvent(handle=handle, output=pb.LLMEngineOutput(index=index, token_ids=[1]))
    event.output.finish_reason = finish  # type: ignore[assignment]  # a number of the enum
    return event


class Says(Reference):
    """Sends these frames, then ends."""

    said: tuple[Frame, ...] = ()

    async def frames(self, stream: Multiplex) -> AsyncIterator[Frame]:
        """Whatever was asked."""
        await stream.events.get()
        for frame in self.said:
            yield frame


async def after(*frames: Frame, submits: int = 1, **changes: object) -> Multiplexed:
    """What a client makes of these frames, having submitted handles 1, 2, ..."""

    class Server(Says):
        said = frames

    server = await InProcess(Server()).start()
    try:
        async with Connection(target=server.target).channel() as channel:
            stream = Multiplexed(Client(channel), timeout=PATIENCE_SECONDS)
            for number in range(1, submits + 1):
                stream.submit(number, request(number, **changes))
            await stream.finish()
            return stream
    finally:
        await server.stop()


def test_a_row_without_columns_is_one_token_of_choice_0() -> None:
    frame = Frame(handles=[1, 2], first_output_positions=[0, 4], token_ids=[8, 9])
    seen = [
        (handle, row.index, list(row.token_ids), row.first_output_position) for handle, row in rows_of(frame)
    ]
    assert seen == [(1, 0, [8], 0), (2, 0, [9], 4)]


def test_a_row_takes_as_many_tokens_as_its_count_says() -> None:
    frame = Frame(
        handles=[1, 1],
        indexes=[0, 1],
        token_counts=[2, 1],
        first_output_positions=[3, 0],
        token_ids=[7, 8, 9],
    )
    assert [(row.index, list(row.token_ids)) for _, row in rows_of(frame)] == [(0, [7, 8]), (1, [9])]


@pytest.mark.parametrize(
    "frame",
    [
        Frame(handles=[1], token_ids=[8]),
        Frame(handles=[1], first_output_positions=[0], token_ids=[8, 9]),
        Frame(handles=[1], first_output_positions=[0], token_counts=[2], token_ids=[8]),
        Frame(handles=[1, 2], indexes=[0], first_output_positions=[0, 0], token_ids=[8, 9]),
        Frame(token_ids=[8]),
    ],
)
def test_columns_that_do_not_agree_are_a_violation(frame: Frame) -> None:
    with pytest.raises(Violation, match="columns"):
        rows_of(frame)


async def test_requests_run_beside_each_other_and_are_told_apart() -> None:
    server = await InProcess(Reference()).start()
    async with Connection(target=server.target).channel() as channel:
        client = Client(channel)
        stream = Multiplexed(client, timeout=PATIENCE_SECONDS)
        stream.send(
            *(stream.submitted(number, request(number, max_tokens=2 + number)) for number in (1, 2, 3))
        )
        await stream.until_ended(1, 2, 3, within=20)
        stream.half_close()
        assert (await stream.finish()).code is grpc.StatusCode.OK
    await server.stop()
    handles = [stream.handle(number) for number in (1, 2, 3)]
    assert [len(handle.tokens) for handle in handles] == [3, 4, 5]
    assert [len(handle.accepted) for handle in handles] == [1, 1, 1]
    assert [handle.usage.completion_tokens for handle in handles] == [3, 4, 5]
    assert not any(handle.is_early or handle.late for handle in handles)


async def test_a_handle_that_is_used_again_begins_anew() -> None:
    server = await InProcess(Reference()).start()
    async with Connection(target=server.target).channel() as channel:
        stream = Multiplexed(Client(channel), timeout=PATIENCE_SECONDS)
        for number in (1, 2):
            stream.submit(1, request(number, max_tokens=number))
            await stream.until_ended(1, within=20)
        await stream.close()
    await server.stop()
    assert [len(use.tokens) for use in stream.uses[1]] == [1, 2]


async def test_an_aborted_handle_ends_and_the_stream_lives() -> None:
    server = await InProcess(Reference()).start()
    async with Connection(target=server.target).channel() as channel:
        stream = Multiplexed(Client(channel), timeout=PATIENCE_SECONDS)
        stream.submit(1, request(max_tokens=1000))
        await stream.until(lambda: bool(stream.handle(1).outputs))
        stream.send(abort=(1,))
        await stream.until_ended(1, within=20)
        await stream.close()
        assert stream.exchange.code is grpc.StatusCode.CANCELLED
    await server.stop()
    assert stream.handle(1).terminals[-1].finish_reason == pb.FINISH_REASON_CANCELLED


async def test_a_handle_without_an_end_is_a_violation_that_names_it() -> None:
    server = await InProcess(Reference()).start()
    async with Connection(target=server.target).channel() as channel:
        stream = Multiplexed(Client(channel), timeout=PATIENCE_SECONDS)
        stream.submit(1, request(1, max_tokens=1000))
        stream.submit(2, request(2, max_tokens=1))
        await stream.until_ended(2, within=20)
        with pytest.raises(Violation) as broken:
            await stream.until_ended(1, 2, within=0)
        await stream.close()
    await server.stop()
    assert broken.value.seen == "[1]"


async def test_a_stream_that_ends_before_its_handles_is_a_violation() -> None:
    stream = await after(Frame(events=[output(1)]))
    with pytest.raises(Violation, match="too early"):
        await asyncio.wait_for(stream.until_ended(1), PATIENCE_SECONDS)


async def test_what_follows_the_end_of_a_handle_is_late() -> None:
    stream = await after(Frame(events=[output(1, LENGTH)]), Frame(events=[output(1)]))
    assert (len(stream.handle(1).outputs), len(stream.handle(1).late)) == (1, 1)


async def test_a_handle_of_two_choices_ends_with_the_second() -> None:
    first, second = output(1, LENGTH, index=0), output(1, LENGTH, index=1)
    stream = await after(Frame(events=[first]), Frame(events=[second]), n=2)
    assert not stream.handle(1).late
    assert sorted(stream.handle(1).by_choice) == [0, 1]


async def test_an_output_before_its_acceptance_is_early_one_beside_it_is_not() -> None:
    beside = Frame(handles=[1], first_output_positions=[0], token_ids=[8])
    beside.events.add(handle=1).accepted.SetInParent()
    before = Frame(handles=[2], first_output_positions=[0], token_ids=[8])
    late = Frame()
    late.events.add(handle=2).accepted.SetInParent()
    stream = await after(beside, before, late, submits=2)
    assert [stream.handle(number).is_early for number in (1, 2)] == [False, True]


async def test_a_status_ends_a_handle() -> None:
    stream = await after(Frame(events=[pb.HandleEvent(handle=1, status=pb.Status(code=3))]))
    status = stream.handle(1).status
    assert stream.handle(1).has_ended
    assert status is not None
    assert status.code == 3


async def test_a_handle_that_nobody_used_is_a_violation() -> None:
    with pytest.raises(Violation, match="never used"):
        await after(Frame(events=[output(9)]))


async def test_a_timeout_is_whole_seconds_and_the_rest() -> None:
    channel = grpc.aio.insecure_channel("unix:/nobody")
    stream = Multiplexed(Client(channel), 1)
    submit = stream.submitted(1, request(), timeout=1.25)
    assert (submit.timeout.seconds, submit.timeout.nanos) == (1, 250_000_000)
    await stream.close()
    await channel.close()


async def test_what_has_no_end_is_live() -> None:
    stream = await after(Frame(events=[output(1, LENGTH), output(2)]), submits=2)
    assert stream.live == ["r2"]
