"""Which loop the programs run on, with and without uvloop."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest
import uvloop

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
