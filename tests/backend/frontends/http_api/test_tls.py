"""The limits of HTTP hold on TLS, which ends and fills up in its own way."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import orjson
import pytest

from enginewire.backend.frontends.text_backend import TextBackend
from tests.backend.frontends.conftest import StartBackend
from tests.backend.frontends.http_api.raw_http import caller, posting
from tests.backend.frontends.http_api.serving import serving_http
from tests.certificates import Authority
from tests.patience import PATIENCE_SECONDS

GET = b"GET /version HTTP/1.1\r\nhost: localhost\r\n\r\n"
SOON = 0.3


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def files(authority: Authority) -> dict[str, Path]:
    mine = authority.signed("mine")
    return {"ssl_certfile": mine.certificate, "ssl_keyfile": mine.key}


@pytest.fixture
def trusting(authority: Authority) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=authority.file)


async def test_what_is_too_much_is_told_and_ends_the_connection(
    text_backend: TextBackend, files: dict[str, Path], trusting: ssl.SSLContext
) -> None:
    async with (
        serving_http(text_backend, **files) as face,
        caller(face.address, tls=trusting) as stranger,
        caller(face.address, tls=trusting) as other,
    ):
        await stranger.say(b"GET /version HTTP/1.1\r\nhost: localhost\r\nx: " + b"y" * 40_000 + b"\r\n\r\n")
        assert (await stranger.answer()).status == 431
        assert await stranger.is_cut_off()
        await other.say(GET)
        assert (await other.answer()).status == 200


async def test_a_head_that_does_not_come_is_refused_in_time(
    text_backend: TextBackend, files: dict[str, Path], trusting: ssl.SSLContext
) -> None:
    async with (
        serving_http(text_backend, client_header_timeout=SOON, **files) as face,
        caller(face.address, tls=trusting) as slow,
    ):
        assert (await slow.answer()).status == 408
        assert await slow.is_cut_off()


async def test_the_reader_who_stalls_is_ended_and_so_is_its_request(
    start_backend: StartBackend, files: dict[str, Path], trusting: ssl.SSLContext
) -> None:
    backend, serving = await start_backend(max_model_len=100_000)
    asked = {"prompt": "x", "max_tokens": 60_000, "ignore_eos": True, "logprobs": 20, "stream": True}
    async with (
        serving_http(backend, slow_consumer_timeout=SOON, **files) as face,
        caller(face.address, receive_buffer=4096, tls=trusting) as stalled,
    ):
        await stalled.say(posting(orjson.dumps(asked)))
        await stalled.reader.readuntil(b"data: ")
        # Nothing is read any more: what the kernels and TLS hold is full soon.
        async with asyncio.timeout(PATIENCE_SECONDS):
            while backend.backend.activity.live:  # noqa: ASYNC110  # no event tells
                await asyncio.sleep(0.02)
        assert backend.backend.activity.totals.finished["abort"] == 1
        await serving.until_idle()


async def test_a_certificate_may_do_what_its_line_says(
    text_backend: TextBackend,
    authority: Authority,
    files: dict[str, Path],
    trusting: ssl.SSLContext,
    tmp_path: Path,
) -> None:
    file, mine = tmp_path / "callers", authority.signed("reader", "reader.example.org")
    file.write_text("certificate reader.example.org role=read\n")
    trusting.load_cert_chain(mine.certificate, mine.key)
    async with (
        serving_http(text_backend, ssl_ca_certs=authority.file, api_key_file=file, **files) as face,
        caller(face.address, tls=trusting) as reader,
    ):
        await reader.say(b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert (await reader.answer()).status == 200
        await reader.say(posting(orjson.dumps({"prompt": "x"})))
        assert (await reader.answer()).status == 403
