"""Which loop the programs run on, with and without uvloop."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator

import grpc
import pytest
import uvloop

from enginewire.grpc_server import bare_server
from enginewire.listening.binding import bind_tcp
from enginewire.program import event_loop


async def running_loop() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()


def test_programs_run_on_uvloop_where_it_is_installed():
    assert isinstance(event_loop.run(running_loop()), uvloop.Loop)


def test_programs_run_on_asyncio_without_uvloop(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert not isinstance(event_loop.run(running_loop()), uvloop.Loop)


def test_a_program_gives_its_result_and_its_error():
    async def fails() -> None:
        raise LookupError("lost")

    async def gives() -> int:
        return 3

    assert event_loop.run(gives()) == 3
    with pytest.raises(LookupError, match="lost"):
        event_loop.run(fails())


def test_programs_start_others_without_what_grpc_does_at_a_fork():
    code = """
import os, sys, enginewire.backend.__main__, enginewire.server.__main__
print("grpc" in sys.modules, os.environ["GRPC_ENABLE_FORK_SUPPORT"])
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    # Once grpc is imported it does not look again.
    assert found.stdout == "False 0\n"


def test_what_served_a_call_may_end_after_its_server(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    ended = []

    async def slow_to_leave(_: bytes, call: grpc.aio.ServicerContext[bytes, bytes]) -> AsyncIterator[bytes]:
        try:
            yield b"x"
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(0.05)
            ended.append(True)

    async def program() -> None:
        server = bare_server()
        methods = {"slow": grpc.unary_stream_rpc_method_handler(slow_to_leave)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("S", methods),))
        target = bind_tcp(server, "127.0.0.1", 0)
        await server.start()
        async with grpc.aio.insecure_channel(target) as channel:
            call = channel.unary_stream("/S/slow")(b"")
            await call.read()
            call.cancel()
        await server.stop(None)

    event_loop.run(program())
    assert (ended, caplog.text) == ([True], "")
    assert "Traceback" not in capfd.readouterr().err
