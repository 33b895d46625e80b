from __future__ import annotations

from itertools import count

from enginewire.conformance.checks import all_checks
from enginewire.conformance.reference.server import Reference
from enginewire.conformance.running.servers.in_process import InProcess
from enginewire.conformance.session.company import FULL, draw
from enginewire.conformance.session.context import Context
from enginewire.conformance.session.crowd import crowded
from enginewire.conformance.session.session import Session
from enginewire.conformance.wire.connection import Connection

KEY = "INF-09/together"


async def test_everything_has_its_turn_in_a_full_engine() -> None:
    """A request that comes after all others would wait until its time is over."""
    (check,) = [each for each in all_checks() if each.key == KEY]
    server = await InProcess(Reference()).start()
    session = Session(connection=Connection(target=server.target))
    try:
        await session.open()
        companies = (draw(session.options.seed, number, session.info.config) for number in count())
        ctx = Context(session, KEY, next(each for each in companies if FULL in each.members))
        async with crowded(session):
            await check.function(ctx)
        await ctx.close()
    finally:
        await session.close()
        await server.stop()
