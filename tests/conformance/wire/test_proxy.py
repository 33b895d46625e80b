from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import pytest

from enginewire.conformance.reference.server import Reference
from enginewire.conformance.running.servers.in_process import InProcess
from enginewire.conformance.session.requests import good_request
from enginewire.conformance.wire.client import Client
from enginewire.conformance.wire.connection import Connection
from enginewire.conformance.wire.proxy import Proxy
from enginewire.conformance.wire.stream import Stream


@pytest.mark.parametrize("unix", [False, True])
async def test_bytes_pass_and_are_counted(unix: bool, tmp_path: Path) -> None:
    server = await InProcess(Reference()).start()
    proxy = await Proxy.open(server.target, at=f"unix:{tmp_path / 'proxy.sock'}" if unix else "")
    async with Connection(target=proxy.target).channel() as channel:
        assert (await Client(channel).info()).config.model == "reference"
    assert proxy.bytes_to_client > 100
    await proxy.close()
    await server.stop()


async def test_a_paused_connection_goes_on_and_a_reset_one_ends() -> None:
    server = await InProcess(Reference()).start()
    proxy = await Proxy.open(server.target)
    async with Connection(target=proxy.target).channel() as channel:
        request = good_request("r", [5, 6])
        request.request.stop_conditions.max_tokens = 1000
        stream = await Stream(request, Client(channel).generate(request)).first_token()
        proxy.pause()
        await asyncio.sleep(0.05)
        count = proxy.bytes_to_client
        await asyncio.sleep(0.05)
        assert proxy.bytes_to_client == count
        proxy.resume()
        await stream.more(100)
        proxy.reset()
        await stream.end()
        assert stream.exchange.code is grpc.StatusCode.UNAVAILABLE
    await proxy.close()
    await server.stop()


async def test_a_name_is_another_one_to_the_server() -> None:
    server = await InProcess(Reference()).start()
    proxy = await Proxy.open(server.target)
    proxy.rename(b"honest-id", b"other--id")
    async with Connection(target=proxy.target).channel() as channel:
        stream = await Stream(good := good_request("honest-id", [5, 6]), Client(channel).generate(good)).ok()
    assert {response.request_id for response in stream.responses} == {"other--id"}
    await proxy.close()
    await server.stop()
