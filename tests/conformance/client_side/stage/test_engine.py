"""The scripted engine by itself, without a server around it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import cast

import grpc
import pytest

from enginewire import v1 as pb
from enginewire.conformance.client_side.stage.engine import CONTEXT, ScriptedEngine
from enginewire.conformance.client_side.stage.script import LENGTH, Stay, Step, Undecided, say
from enginewire.conformance.client_side.stage.turn import Scene
from enginewire.conformance.wire.exchange import LIFETIME_KEY


class Context:
    """What a call may ask gRPC for."""

    def __init__(self) -> None:
        self.headers: list[object] = []

    async def send_initial_metadata(self, metadata: object) -> None:
        self.headers.append(metadata)

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return ()

    def time_remaining(self) -> float | None:
        """No deadline."""
        return None


def begin(
    engine: ScriptedEngine, *script: Step, context: Context | None = None
) -> tuple[Scene, AsyncIterator[pb.GenerateResponse]]:
    scene = engine.play([1, 2, 3], [script])
    request = pb.GenerateRequest(request_id="a", request=pb.PreprocessedRequest(token_ids=scene.prompt))
    call = engine.generate(request, cast(CONTEXT, context or Context()))
    return scene, cast("AsyncIterator[pb.GenerateResponse]", call)


async def test_a_call_that_is_dropped_while_a_message_is_on_its_way_has_left() -> None:
    # grpc.aio does so when a call is cancelled during a write: the iterator gets GeneratorExit.
    scene, call = begin(ScriptedEngine(), say("a"), Stay())
    await anext(call)
    await call.aclose()  # type: ignore[attr-defined]  # a generator
    (turn,) = scene.turns
    assert (turn.left.is_set(), turn.exchange.code) == (True, grpc.StatusCode.CANCELLED)
    assert turn.exchange.ended_at


async def test_a_call_that_is_cancelled_while_nothing_is_said_has_left() -> None:
    scene, call = begin(ScriptedEngine(), say("a"), Stay())
    await anext(call)
    waiting = asyncio.ensure_future(anext(call))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    (turn,) = scene.turns
    assert (turn.left.is_set(), turn.exchange.code) == (True, grpc.StatusCode.CANCELLED)


async def test_a_call_that_was_played_to_its_end_has_not_left() -> None:
    scene, call = begin(ScriptedEngine(), say("a", finish=LENGTH))
    assert [bool(response.output.finish_reason) async for response in call] == [True]
    (turn,) = scene.turns
    assert (turn.left.is_set(), turn.exchange.code) == (False, grpc.StatusCode.OK)


async def test_headers_come_with_the_acceptance_and_name_the_life() -> None:
    context = Context()
    _, call = begin(ScriptedEngine(), say("a"), Stay(), context=context)
    await anext(call)
    assert context.headers == [((LIFETIME_KEY, "life-1"),)]


async def test_a_request_that_is_undecided_has_no_headers_until_it_is_left() -> None:
    context = Context()
    scene, call = begin(ScriptedEngine(), Undecided(), context=context)
    waiting = asyncio.ensure_future(anext(call))
    await scene.arrived.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert scene.turns[0].left.is_set()
    assert not context.headers
