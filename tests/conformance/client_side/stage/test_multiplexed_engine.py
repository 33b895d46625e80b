"""The scripted engine over GenerateMultiplexed, asked by the kit's own client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc
import pytest

from enginewire import v1 as pb
from enginewire.conformance.client_side.stage.backends import SCRIPTED
from enginewire.conformance.client_side.stage.engine import ScriptedEngine
from enginewire.conformance.client_side.stage.facts import Facts
from enginewire.conformance.client_side.stage.script import DIED, LENGTH, Stay, Step, Undecided, say
from enginewire.conformance.client_side.stage.turn import Scene
from enginewire.conformance.session.requests import good_request
from enginewire.conformance.wire.client import Client
from enginewire.conformance.wire.connection import Connection
from enginewire.conformance.wire.multiplexed import Multiplexed

PATIENCE = 20.0


class Caller:
    """A backend of few words: one stream to one engine."""

    def __init__(self, engine: ScriptedEngine, channel: grpc.aio.Channel) -> None:
        self.engine = engine
        self.stream = Multiplexed(Client(channel), timeout=PATIENCE)

    def ask(self, handle: int, *script: Step, timeout: float = 0) -> Scene:
        """Submit a request for this script."""
        scene = self.engine.play([handle, handle], [script])
        self.stream.submit(handle, good_request(f"r{handle}", scene.prompt), timeout)
        return scene


@pytest.fixture
async def caller() -> AsyncIterator[Caller]:
    engine = ScriptedEngine(Facts(multiplexed=True))
    await engine.start(SCRIPTED)
    async with Connection(target=engine.target).channel() as channel:
        yield Caller(engine, channel)
    await engine.stop()


async def test_scripts_are_played_side_by_side_until_the_client_half_closes(caller: Caller) -> None:
    caller.ask(1, say("a"), say("b", finish=LENGTH))
    caller.ask(2, say("c", finish=LENGTH))
    await caller.stream.until_ended(1, 2, within=PATIENCE)
    caller.stream.half_close()
    assert (await caller.stream.finish()).code is grpc.StatusCode.OK
    assert [caller.stream.handle(handle).tokens for handle in (1, 2)] == [[*b"ab"], [*b"c"]]
    assert [turn.exchange.code for turn in caller.engine.turns] == [grpc.StatusCode.OK] * 2


async def test_a_failure_is_the_status_of_its_handle(caller: Caller) -> None:
    caller.ask(1, say("a"), DIED)
    caller.ask(2, DIED)
    await caller.stream.until_ended(1, 2, within=PATIENCE)
    await caller.stream.close()
    handles = [caller.stream.handle(handle) for handle in (1, 2)]
    assert [len(handle.accepted) for handle in handles] == [1, 0]
    assert [handle.status and handle.status.code for handle in handles] == [14, 14]


async def test_an_aborted_handle_has_left_and_ends_as_cancelled(caller: Caller) -> None:
    scene = caller.ask(1, say("a"), Stay())
    await caller.stream.until(lambda: bool(caller.stream.handle(1).tokens))
    caller.stream.send(abort=(1,))
    await caller.stream.until_ended(1, within=PATIENCE)
    await caller.stream.close()
    assert scene.turns[0].left.is_set()
    assert caller.stream.handle(1).terminals[0].finish_reason == pb.FINISH_REASON_CANCELLED


async def test_a_request_that_is_undecided_is_refused_once_it_is_aborted(caller: Caller) -> None:
    scene = caller.ask(1, Undecided())
    await asyncio.wait_for(scene.arrived.wait(), PATIENCE)
    caller.stream.send(abort=(1,))
    await caller.stream.until_ended(1, within=PATIENCE)
    await caller.stream.close()
    handle = caller.stream.handle(1)
    assert (len(handle.accepted), handle.status and handle.status.code) == (0, 1)


async def test_cancelling_the_stream_leaves_every_request(caller: Caller) -> None:
    scenes = [caller.ask(handle, say("a"), Stay()) for handle in (1, 2)]
    await caller.stream.until(lambda: all(caller.stream.handle(handle).tokens for handle in (1, 2)))
    await caller.stream.close()
    for scene in scenes:
        await asyncio.wait_for(scene.turns[0].left.wait(), PATIENCE)
        assert scene.turns[0].exchange.code is grpc.StatusCode.CANCELLED


async def test_an_end_without_a_terminal_ends_the_stream(caller: Caller) -> None:
    caller.ask(1, say("a"))
    assert (await caller.stream.finish()).code is grpc.StatusCode.OK
    assert not caller.stream.handle(1).has_ended


async def test_the_timeout_of_a_submit_is_the_time_that_is_left(caller: Caller) -> None:
    scene = caller.ask(1, say("a", finish=LENGTH), timeout=2.5)
    await caller.stream.until_ended(1, within=PATIENCE)
    await caller.stream.close()
    assert scene.turns[0].seconds_left == 2.5


async def test_an_engine_that_does_not_offer_it_has_no_such_call() -> None:
    engine = ScriptedEngine()
    await engine.start(SCRIPTED)
    async with Connection(target=engine.target).channel() as channel:
        client = Client(channel)
        assert not (await client.info()).config.capabilities.multiplexed
        stream = Multiplexed(client, timeout=PATIENCE)
        stream.half_close()
        assert (await stream.finish()).code is grpc.StatusCode.UNIMPLEMENTED
    await engine.stop()


async def test_an_aborted_handle_ends_all_of_its_choices_and_not_the_stream(caller: Caller) -> None:
    first = caller.engine.play([1, 1], [[say("a", index=1, finish=LENGTH), say("b"), Stay()]])
    submit = good_request("r1", first.prompt)
    submit.request.sampling_options.n = 3
    caller.stream.submit(1, submit)
    caller.ask(2, say("c"), Stay())
    await caller.stream.until(lambda: bool(caller.stream.handle(1).outputs[1:]))
    caller.stream.send(abort=(1,))
    await caller.stream.until_ended(1, within=PATIENCE)
    ends = {each.index: each.finish_reason for each in caller.stream.handle(1).terminals}
    cancelled = pb.FINISH_REASON_CANCELLED
    assert ends == {0: cancelled, 1: pb.FINISH_REASON_LENGTH, 2: cancelled}
    assert not caller.stream.handle(2).has_ended
    await caller.stream.close()
