from __future__ import annotations

import pytest

from enginewire.conformance.oracle import findings
from enginewire.conformance.oracle.beside import mixed
from enginewire.conformance.reference.server import Reference
from enginewire.conformance.running.in_process import InProcess
from enginewire.conformance.session.context import Context
from enginewire.conformance.session.run_options import RunOptions
from enginewire.conformance.session.session import Session
from enginewire.conformance.wire.connection import Connection


async def said_of(cases: int) -> str:
    server = await InProcess(Reference()).start()
    session = Session(connection=Connection(target=server.target), options=RunOptions(cases=cases))
    await session.open()
    try:
        assert await mixed(Context(session, "mixed")) == []
        return session.drawn
    finally:
        await session.close()
        await server.stop()


async def test_fewer_mixes_than_were_asked_for_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await said_of(8) == ""
    monkeypatch.setattr(findings, "EFFORTS", -1)
    assert await said_of(8) == "mixes: 0 of 8, for want of time or room"
