from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from enginewire import v1 as pb
from enginewire.conformance.mutants.scheduling.cancellation import LeakOnCancel, LeakOnQueuedCancel
from enginewire.conformance.reference.server import Reference
from enginewire.conformance.running.servers.in_process import InProcess
from enginewire.conformance.session.bounds import LEAST_LOOKS
from enginewire.conformance.session.context import Context
from enginewire.conformance.session.saturation import queued, saturated
from enginewire.conformance.session.session import Session
from enginewire.conformance.session.watching import (
    NOTICED,
    freed,
    left_the_queue,
    still_running,
    until,
)
from enginewire.conformance.wire.connection import Connection
from enginewire.conformance.wire.loads import is_idle
from enginewire.conformance.wire.violation import NotApplicable, Violation


class SlowToTell(Reference):
    """Takes so long to say what its load is that few can ask in the time that they have."""

    busy_looks = LEAST_LOOKS - 1
    looks = 0

    async def get_load(self) -> pb.GetLoadResponse:
        await asyncio.sleep(0.01)
        self.looks += 1
        response = await super().get_load()
        response.load.running += self.looks <= self.busy_looks
        return response


class NeverIdle(SlowToTell):
    busy_looks = 1000


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Reference:
    made: Reference = getattr(request, "param", Reference)()
    return made


@pytest.fixture
async def ctx(server: Reference) -> AsyncIterator[Context]:
    listening = await InProcess(server).start()
    session = Session(connection=Connection(target=listening.target))
    await session.open()
    context = Context(session, "TST-01")
    yield context
    await context.close()
    await session.close()
    await listening.stop()


async def test_a_cancelled_stream_is_freed(ctx: Context) -> None:
    stream = await ctx.start(ctx.long_request()).first_token()
    stream.cancel()
    await freed(ctx, [stream.request])


@pytest.mark.parametrize("server", [LeakOnCancel], indirect=True)
async def test_what_is_not_freed_is_a_violation_and_aborted(ctx: Context, server: Reference) -> None:
    stream = await ctx.start(ctx.long_request()).first_token()
    stream.cancel()
    with pytest.raises(Violation, match="not freed"):
        await freed(ctx, [stream.request], within=0.2)
    assert server.live == {}


@pytest.mark.parametrize("server", [SlowToTell, NeverIdle], indirect=True)
async def test_who_is_slow_to_tell_has_time_for_enough_looks(ctx: Context, server: SlowToTell) -> None:
    server.looks = 0
    if isinstance(server, NeverIdle):
        with pytest.raises(Violation, match="is not idle"):
            await until(ctx, is_idle, "it is not idle", within=0.02)
    else:
        await until(ctx, is_idle, "it is not idle", within=0.02)
    assert server.looks == LEAST_LOOKS


async def test_a_stream_that_ended_by_itself_cannot_be_judged(ctx: Context) -> None:
    stream = await ctx.generate(ctx.request(max_tokens=2))
    with pytest.raises(NotApplicable):
        await still_running(ctx, stream)


async def test_a_request_beyond_the_slots_is_seen_to_wait(ctx: Context, server: Reference) -> None:
    async with saturated(ctx) as running:
        stream = await queued(ctx, running)
        assert [job.request_id for job in server.waiting] == [stream.request.request_id]


async def _leave_with_slots_free_after(ctx: Context, seconds: float) -> None:
    """A request leaves the queue, and those that fill the slots leave so much later."""
    async with saturated(ctx) as running:
        waiting = await queued(ctx, running)
        waiting.cancel()
        watching = asyncio.ensure_future(left_the_queue(ctx, len(running), 0, "it still waits"))
        await asyncio.sleep(seconds)
        for stream in running:
            stream.cancel()
        await watching


async def test_who_has_left_the_queue_is_seen_to_have(ctx: Context) -> None:
    await _leave_with_slots_free_after(ctx, 0.1)


@pytest.mark.parametrize("server", [LeakOnQueuedCancel], indirect=True)
async def test_who_waits_until_there_are_slots_has_not_left_the_queue(ctx: Context) -> None:
    with pytest.raises(Violation, match="still waits"):
        await _leave_with_slots_free_after(ctx, 2 * NOTICED * ctx.bounds.reaction)


@pytest.mark.parametrize("server", [LeakOnQueuedCancel], indirect=True)
async def test_where_there_are_slots_at_once_nobody_can_say_who_left(ctx: Context) -> None:
    await _leave_with_slots_free_after(ctx, 0)
