"""The end of a server as its connections see it: nobody's request is lost between two answers."""

from __future__ import annotations

import asyncio

import orjson
import pytest

from enginewire.backend.frontends.http_api import connection
from enginewire.backend.frontends.http_api.server import HttpFace
from enginewire.backend.frontends.text_backend import TextBackend
from tests.backend.frontends.conftest import StartBackend
from tests.backend.frontends.http_api.raw_http import GET, caller, posting, still_serves
from tests.backend.frontends.http_api.serving import serving_http
from tests.patience import PATIENCE_SECONDS
from tests.server.serving import until_true

ASK = orjson.dumps({"prompt": "abc", "max_tokens": 3})


async def began_to_drain(face: HttpFace) -> asyncio.Task[None]:
    """Nobody gets a new connection any more, and those that are there know."""
    draining = asyncio.create_task(face.drain(PATIENCE_SECONDS))
    host, _, port = face.address.rpartition("/")[2].rpartition(":")
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            try:
                _, writer = await asyncio.open_connection(host, port)
            except ConnectionError:
                return draining
            writer.transport.abort()


@pytest.mark.parametrize("begun", [GET[:10], posting(ASK)[:-5], b""], ids=["head", "body", "nothing"])
async def test_at_the_end_a_connection_has_one_more_request(
    text_backend: TextBackend, monkeypatch: pytest.MonkeyPatch, begun: bytes
) -> None:
    monkeypatch.setattr(connection, "LAST_REQUEST_SECONDS", PATIENCE_SECONDS)
    whole = posting(ASK) if begun.startswith(b"POST") else GET
    async with serving_http(text_backend) as face, caller(face.address) as stranger:
        await stranger.say(GET)
        assert "connection" not in (await stranger.answer()).headers
        await stranger.say(begun)
        draining = await began_to_drain(face)
        await stranger.say(whole[len(begun) :])
        answer = await stranger.answer()
        assert (answer.status, answer.headers["connection"]) == (200, "close")
        assert await stranger.is_cut_off()
        await draining


async def test_an_answer_that_began_before_the_end_may_be_followed_by_a_request(
    start_backend: StartBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "LAST_REQUEST_SECONDS", PATIENCE_SECONDS)
    backend, _ = await start_backend(mocker_itl_ms=10.0)
    body = orjson.dumps({"prompt": "abc", "max_tokens": 20, "ignore_eos": True, "stream": True})
    async with serving_http(backend) as face, caller(face.address) as stranger:
        await stranger.say(posting(body))
        await stranger.reader.readuntil(b"data: ")
        draining = await began_to_drain(face)
        received = b""
        while not received.endswith(b"0\r\n\r\n"):
            received += await stranger.reader.read(1024)
        await stranger.say(GET)
        assert (await stranger.answer()).headers["connection"] == "close"
        await draining


@pytest.mark.parametrize("said", [b"", GET], ids=["never used", "used"])
async def test_at_the_end_a_connection_that_was_idle_is_closed(
    text_backend: TextBackend, monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    monkeypatch.setattr(connection, "LAST_REQUEST_SECONDS", 0.0)
    long = 10 * round(PATIENCE_SECONDS)
    async with (
        serving_http(text_backend, timeout_keep_alive=long) as face,
        caller(face.address) as stranger,
    ):
        await stranger.say(said)
        if said:
            await stranger.answer()
        await until_true(lambda: bool(face._server.server_state.connections))
        # Neither the drain nor the time of an idle connection ends it.
        await asyncio.wait_for(face.drain(long), PATIENCE_SECONDS)
        assert await stranger.everything() == b""


@pytest.mark.parametrize("begun", [GET[:10], posting(ASK)[:-5]], ids=["head", "body"])
async def test_at_the_end_nobody_waits_for_the_rest_of_a_request(
    text_backend: TextBackend, monkeypatch: pytest.MonkeyPatch, begun: bytes
) -> None:
    monkeypatch.setattr(connection, "LAST_REQUEST_SECONDS", 0.0)
    async with serving_http(text_backend) as face, caller(face.address) as stranger:
        await stranger.say(GET)
        await stranger.answer()
        await stranger.say(begun)
        # Sent behind it and answered, so that it has arrived as well.
        assert await still_serves(face.address)
        await face.drain(PATIENCE_SECONDS)
        assert (await stranger.answer()).status == 503
        assert await stranger.is_cut_off()
