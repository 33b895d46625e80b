"""An engine in Python, judged by the conformance kit in a test: each server lives in this process.

`my_server` is all that is yours: it starts a fresh server, yields its address and ends it. Here it serves
the mocker; put your engine in its place. Needs `enginewire[server]` and pytest-asyncio.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from enginewire.conformance import engine_conformance, render
from enginewire.server import EngineServer, MockerEngine, MockerOptions, ServerOptions


@asynccontextmanager
async def my_server() -> AsyncIterator[str]:
    """A server on a Unix socket of its own."""
    with tempfile.TemporaryDirectory() as folder:
        engine = MockerEngine(MockerOptions(itl_ms=2, max_num_seqs=16))
        server = EngineServer(engine, ServerOptions(uds=Path(folder) / "engine.sock"))
        await server.listen()
        try:
            await server.start()
            yield server.target
        finally:
            await server.stop()


async def test_my_engine_keeps_the_contract() -> None:
    """The report explains every requirement that does not hold."""
    report = await engine_conformance(my_server, run=["STR-*", "USE-*"])
    assert report.is_conformant, render(report)
