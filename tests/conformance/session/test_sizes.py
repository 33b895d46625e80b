from __future__ import annotations

from enginewire import v1 as pb
from enginewire.conformance.session.context import Context
from enginewire.conformance.session.session import Session
from enginewire.conformance.wire.connection import Connection

SALTS = 600
"""Those that checks choose are all below."""


async def test_fresh_prompts_begin_with_a_block_that_no_check_has_chosen() -> None:
    session = Session(connection=Connection(target="127.0.0.1:1"))
    config = pb.EngineConfig(vocab_size=96, context_length=256, kv_cache_block_size=8)
    session.info = pb.GetEngineInfoResponse(config=config)
    ctx = Context(session, "fresh")
    chosen = {tuple(ctx.prompt(8, salt=salt)) for salt in range(SALTS)}
    fresh = {tuple(ctx.fresh_prompt(4)[:8]) for _ in range(SALTS)}
    assert chosen.isdisjoint(fresh)
    await session.close()
