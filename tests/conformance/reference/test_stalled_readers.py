from __future__ import annotations

from enginewire.conformance.checks.streams.backpressure import FEWEST, STALLED, _stalled
from enginewire.conformance.reference.server import Reference
from enginewire.conformance.running.outcome import Status
from enginewire.conformance.session.context import Context
from enginewire.conformance.wire.violation import expect
from tests.conformance.judging import judged, made_up, statuses


async def test_each_of_several_readers_is_behind_when_they_have_stalled() -> None:
    servers: list[Reference] = []

    def make() -> Reference:
        servers.append(Reference())
        return servers[0]

    async def look(ctx: Context) -> None:
        before = servers[0].counters.tokens_generated
        await _stalled(ctx, *(ctx.long_request() for _ in range(STALLED)))
        generated = servers[0].counters.tokens_generated - before
        expect(generated >= STALLED * FEWEST, "a reader is not behind", seen=generated)

    assert statuses(await judged(make, [made_up("STR-01", look)]))["STR-01"] is Status.PASS


async def test_an_answer_that_is_short_ends_the_wait() -> None:
    async def look(ctx: Context) -> None:
        await _stalled(ctx, ctx.request(max_tokens=2))

    assert statuses(await judged(checks=[made_up("STR-01", look)]))["STR-01"] is Status.PASS
