"""What one caller, and all of them together, may send, hold and withhold."""

from __future__ import annotations

import asyncio
import resource
import time
from contextlib import AsyncExitStack

import orjson
import psutil
import pytest
import uvicorn
from starlette.applications import Starlette

from enginewire.backend.config import ServeOptions
from enginewire.backend.frontends.http_api.connection import (
    MAX_HEAD_BYTES,
    MAX_LARGE_BODIES,
    MAX_TURNED_AWAY,
    SMALL_BODY_BYTES,
    BoundedConnection,
    BoundedState,
)
from enginewire.backend.frontends.http_api.server import allow_files, limits_of
from enginewire.backend.frontends.text_backend import TextBackend
from tests.backend.frontends.conftest import StartBackend
from tests.backend.frontends.http_api.raw_http import GET, Caller, caller, head_of, posting, still_serves
from tests.backend.frontends.http_api.serving import serving_http
from tests.long import long
from tests.patience import PATIENCE_SECONDS

ASK = orjson.dumps({"prompt": "abc", "max_tokens": 3})
SOON = 0.3


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET /" + b"x" * 40_000 + b" HTTP/1.1\r\nhost: localhost\r\n\r\n", 414),
        (b"GET /version HTTP/1.1\r\nhost: localhost\r\nx: " + b"y" * 40_000 + b"\r\n\r\n", 431),
        (b"GET /version HTTP/1.1\r\nhost: localhost\r\n" + b"a: b\r\n" * 2_000 + b"\r\n", 431),
        (b"GET /version HTTP/1.1\r\nhost: localhost\r\n" + b"a: b\r\n" * 400 + b"\r\n", 200),
        (b"GET /version HTTP/1.1\r\nhost: localhost\r\nx: " + b"y" * 20_000 + b"\r\n\r\n", 200),
        (b"GET /version HTTP/1.1\r\nno colon\r\n\r\n", 400),
        (head_of(length=9_000_000), 413),
    ],
)
async def test_heads_have_a_bound(text_backend: TextBackend, head: bytes, status: int) -> None:
    async with serving_http(text_backend) as face, caller(face.address) as stranger:
        await stranger.say(head)
        answer = await stranger.answer()
        assert answer.status == status
        if status != 200:
            assert answer.headers["connection"] == "close"
            assert answer.error["type"] == "invalid_request_error"
            await stranger.say(b"z" * 1_000_000)
            stranger.writer.write_eof()
            assert await stranger.is_cut_off()
        assert await still_serves(face.address)


@pytest.mark.parametrize(
    "beginning",
    [
        b"GET /version HTTP/1.1\r\nx: ",
        b"GET /",
        b"GET /version HTTP/1.1\r\n" + b"x" * 100,
        # Fields behind a body are fields too.
        b"POST /v1/completions HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n0\r\nx: ",
        b"POST /v1/completions HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n1;",
    ],
)
async def test_a_head_without_end_is_not_kept(text_backend: TextBackend, beginning: bytes) -> None:
    async with serving_http(text_backend) as face, caller(face.address) as stranger:
        await stranger.say(beginning)
        for _ in range(40):
            await stranger.say(b"y" * 8_192)
            await asyncio.sleep(0)
        assert await stranger.is_cut_off()
        assert await still_serves(face.address)


async def test_a_head_that_does_not_come_is_refused_in_time(text_backend: TextBackend) -> None:
    async with serving_http(text_backend, client_header_timeout=SOON) as face, AsyncExitStack() as stack:
        strangers = [await stack.enter_async_context(caller(face.address)) for _ in range(3)]
        await strangers[1].say(b"GET /version HTTP/1.1\r\n")
        await strangers[2].say(GET)
        assert (await strangers[2].answer()).status == 200
        # The next request on the same connection has a head of its own.
        await strangers[2].say(b"GET /ver")
        for stranger in strangers:
            answer = await stranger.answer()
            assert (answer.status, answer.headers["connection"]) == (408, "close")


async def test_a_trickle_of_a_head_is_no_excuse(text_backend: TextBackend) -> None:
    async with serving_http(text_backend, client_header_timeout=SOON) as face, caller(face.address) as slow:
        await slow.say(b"GET /version HTTP/1.1\r\nx: ")
        answering = asyncio.create_task(slow.answer())
        while not answering.done():
            await slow.say(b"y")
            await asyncio.sleep(0.02)
        assert answering.result().status == 408


@pytest.mark.parametrize("is_chunked", [False, True])
async def test_a_body_that_never_ends_is_refused_in_time(text_backend: TextBackend, is_chunked: bool) -> None:
    head = head_of(length=1000)
    if is_chunked:
        head = head.replace(b"content-length: 1000", b"transfer-encoding: chunked")
    async with serving_http(text_backend, client_body_timeout=SOON) as face, caller(face.address) as slow:
        await slow.say(head)
        answer = await slow.answer()
        assert (answer.status, answer.headers["connection"]) == (408, "close")
        assert "body" in str(answer.error["message"])


async def test_a_body_in_chunks_has_the_same_bound(text_backend: TextBackend) -> None:
    head = head_of(length=0).replace(b"content-length: 0", b"transfer-encoding: chunked")
    async with serving_http(text_backend, max_message_bytes=4096) as face, caller(face.address) as stranger:
        await stranger.say(head)
        for _ in range(5):
            await stranger.say(b"400\r\n" + b"x" * 1024 + b"\r\n")
        assert (await stranger.answer()).status == 413


async def test_whoever_sends_everything_before_it_reads_is_told_all_the_same(
    text_backend: TextBackend,
) -> None:
    body = b"x" * 9_000_000
    async with serving_http(text_backend) as face, caller(face.address) as stranger:
        sending = asyncio.create_task(stranger.say(posting(body)))
        await asyncio.wait([sending])
        assert (await stranger.answer()).status == 413


@pytest.mark.parametrize("behind", [b"\r\n", GET[:20], head_of(length=100) + b"x"])
async def test_what_comes_behind_a_request_does_not_end_its_answer(
    start_backend: StartBackend, behind: bytes
) -> None:
    backend, _ = await start_backend(mocker_itl_ms=20.0)
    body = orjson.dumps({"prompt": "x", "max_tokens": 60, "ignore_eos": True, "stream": True})
    async with (
        serving_http(backend, client_header_timeout=SOON, client_body_timeout=SOON) as face,
        caller(face.address) as stranger,
    ):
        await stranger.say(posting(body))
        await stranger.reader.readuntil(b"data: ")
        await stranger.say(behind)
        received = b""
        while b"[DONE]" not in received:
            piece = await stranger.reader.read(1 << 16)
            assert piece, "it was cut off"
            received += piece


async def test_a_body_that_goes_on_behind_its_answer_ends_too(text_backend: TextBackend) -> None:
    head = head_of(length=100_000).replace(b"application/json", b"text/plain")
    async with serving_http(text_backend, client_body_timeout=SOON) as face, caller(face.address) as stranger:
        await stranger.say(head)
        assert (await stranger.answer()).status == 415
        assert await stranger.is_cut_off()


async def test_a_connection_whose_body_came_behind_its_answer_is_used_again(
    text_backend: TextBackend,
) -> None:
    head = head_of(length=10).replace(b"application/json", b"text/plain")
    async with (
        serving_http(text_backend, timeout_keep_alive=1) as face,
        caller(face.address) as stranger,
    ):
        await stranger.say(head)
        assert (await stranger.answer()).status == 415
        await stranger.say(b"x" * 10 + GET)
        assert (await stranger.answer()).status == 200
        assert await stranger.is_cut_off()


async def test_an_idle_connection_is_closed(text_backend: TextBackend) -> None:
    head = head_of(length=10).replace(b"application/json", b"text/plain")
    async with (
        serving_http(text_backend, timeout_keep_alive=1) as face,
        caller(face.address) as one,
        caller(face.address) as other,
    ):
        await one.say(GET)
        await other.say(head)
        assert ((await one.answer()).status, (await other.answer()).status) == (200, 415)
        await other.say(b"x" * 10)
        assert await one.is_cut_off()
        assert await other.is_cut_off()


async def test_what_unfinished_bodies_hold_is_bounded_and_small_ones_still_pass(
    text_backend: TextBackend,
) -> None:
    size = 1 << 20
    async with serving_http(text_backend, max_message_bytes=size) as face, AsyncExitStack() as stack:
        statuses = []

        async def hold(stranger: Caller) -> None:
            await stranger.say(posting(b"x" * (size - 1), length=size))
            statuses.append(await stranger.answer())

        strangers = [
            await stack.enter_async_context(caller(face.address)) for _ in range(MAX_LARGE_BODIES + 8)
        ]
        holding = [asyncio.create_task(hold(stranger)) for stranger in strangers]
        room = (size - SMALL_BODY_BYTES) * (MAX_LARGE_BODIES + 8) - MAX_LARGE_BODIES * size
        num_refused = -(-room // (size - SMALL_BODY_BYTES))
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(statuses) < num_refused:  # noqa: ASYNC110  # no event tells
                await asyncio.sleep(0.01)
        assert {answer.status for answer in statuses} == {503}
        assert int(statuses[0].headers["retry-after"]) >= 1
        async with caller(face.address) as other:
            await other.say(posting(ASK))
            assert (await other.answer()).status == 200
        for task in holding:
            task.cancel()
        await asyncio.gather(*holding, return_exceptions=True)
        await stack.aclose()
        # Whoever leaves gives its room back.
        async with caller(face.address) as other:
            await other.say(posting(ASK + b" " * (size - len(ASK))))
            assert (await other.answer()).status == 200


async def test_connections_beyond_the_limit_are_told_to_come_back(text_backend: TextBackend) -> None:
    async with serving_http(text_backend, limit_concurrency=3) as face, AsyncExitStack() as stack:
        for _ in range(3):
            await stack.enter_async_context(caller(face.address))
        async with caller(face.address) as late:
            await late.say(GET)
            answer = await late.answer()
            assert (answer.status, answer.headers["retry-after"]) == (503, "1")
            assert answer.error["code"] == "overloaded"
        strangers = [
            await stack.enter_async_context(caller(face.address)) for _ in range(MAX_TURNED_AWAY + 1)
        ]
        # So many are not even told.
        assert await strangers[-1].everything() == b""
        await stack.aclose()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not await still_serves_now(face.address):  # noqa: ASYNC110  # no event tells
                await asyncio.sleep(0.02)


async def still_serves_now(address: str) -> bool:
    try:
        return await still_serves(address)
    except (ConnectionError, asyncio.IncompleteReadError):
        return False


async def test_requests_that_wait_for_the_one_before_them_are_bounded(start_backend: StartBackend) -> None:
    backend, serving = await start_backend(mocker_itl_ms=50.0)
    body = orjson.dumps({"prompt": "x", "max_tokens": 4000, "ignore_eos": True, "stream": True})
    async with serving_http(backend) as face, caller(face.address) as stranger:
        await stranger.say(posting(body) + GET * 100)
        assert await stranger.is_cut_off()
        await serving.until_idle()


async def test_a_caller_who_leaves_with_more_requests_behind_is_noticed(start_backend: StartBackend) -> None:
    backend, serving = await start_backend(mocker_itl_ms=50.0)
    body = orjson.dumps({"prompt": "x", "max_tokens": 4000, "ignore_eos": True, "stream": True})
    async with serving_http(backend) as face:
        async with caller(face.address) as stranger:
            await stranger.say(posting(body) + GET + GET)
            await stranger.reader.readuntil(b"data: ")
        await serving.until_idle()


@pytest.mark.parametrize("more", [{}, {"n": 2}])
async def test_the_reader_of_a_stream_who_stalls_is_ended_and_so_is_its_request(
    start_backend: StartBackend, more: dict[str, object]
) -> None:
    backend, serving = await start_backend(max_model_len=100_000)
    asked = {"prompt": "x", "max_tokens": 60_000, "ignore_eos": True, "logprobs": 20, "stream": True, **more}
    async with (
        serving_http(backend, slow_consumer_timeout=SOON) as face,
        caller(face.address, receive_buffer=4096) as stalled,
    ):
        await stalled.say(posting(orjson.dumps(asked)))
        await stalled.reader.readuntil(b"data: ")
        # Nothing is read any more: what the kernels hold is full soon.
        async with asyncio.timeout(PATIENCE_SECONDS):
            while backend.backend.activity.live:  # noqa: ASYNC110  # no event tells
                await asyncio.sleep(0.02)
        assert backend.backend.activity.totals.finished["abort"] == more.get("n", 1)
        await serving.until_idle()
        assert await still_serves(face.address)


@long
async def test_a_slow_reader_who_goes_on_is_not_stalled(start_backend: StartBackend) -> None:
    backend, _ = await start_backend(max_model_len=100_000)
    # Longer than this process may stand still on a busy machine, and shorter than the reader takes.
    patience, began = 3.0, time.monotonic()
    asked = {"prompt": "x", "max_tokens": 3000, "ignore_eos": True, "logprobs": 20, "stream": True}
    async with (
        serving_http(backend, slow_consumer_timeout=patience) as face,
        caller(face.address, receive_buffer=4096) as slow,
    ):
        await slow.say(posting(orjson.dumps(asked)))
        received = b""
        while b"[DONE]" not in received[-100:]:
            piece = await slow.reader.read(1 << 16)
            assert piece
            received += piece
            await asyncio.sleep(0.01)
    assert time.monotonic() - began > patience


async def test_an_answer_in_one_piece_that_nobody_reads_ends_too(start_backend: StartBackend) -> None:
    backend, _ = await start_backend(max_model_len=100_000)
    asked = {"prompt": "x", "max_tokens": 12_000, "ignore_eos": True, "logprobs": 20}
    async with (
        serving_http(backend, slow_consumer_timeout=SOON) as face,
        caller(face.address, receive_buffer=4096) as stalled,
    ):
        await stalled.say(posting(orjson.dumps(asked)))
        await stalled.reader.readuntil(b"\r\n\r\n")
        async with asyncio.timeout(PATIENCE_SECONDS):
            while connections_of(face.address):  # noqa: ASYNC110  # no event tells
                await asyncio.sleep(0.05)


class FullTransport(asyncio.Transport):
    """Takes nothing more, until it is told otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.num_unsent = 100
        self.is_aborted = False

    def get_write_buffer_size(self) -> int:
        return self.num_unsent

    def abort(self) -> None:
        self.is_aborted = True


async def test_whoever_takes_something_between_two_looks_is_not_stalled() -> None:
    limits = limits_of(ServeOptions(slow_consumer_timeout=10.0))
    connection = BoundedConnection(uvicorn.Config(Starlette()), BoundedState(limits), {})
    transport = FullTransport()
    connection.connection_made(transport)
    now = time.monotonic()
    connection.look(now - 11)
    connection.look(now - 5)
    # As full as before, but with other bytes.
    connection.pause_writing()
    connection.resume_writing()
    connection.look(now + 1)
    assert not transport.is_aborted
    # Everything was taken, and the buffer is as full again.
    transport.num_unsent = 0
    connection.look(now + 8)
    transport.num_unsent = 100
    connection.look(now + 16)
    connection.look(now + 25)
    assert not transport.is_aborted
    connection.look(now + 27)
    assert transport.is_aborted


def connections_of(address: str) -> int:
    """Those that the server still holds open."""
    port = int(address.rpartition(":")[2])
    return sum(
        connection.laddr.port == port and connection.status == psutil.CONN_ESTABLISHED
        for connection in psutil.Process().net_connections("tcp")
    )


def test_memory_that_callers_can_take_follows_from_the_options() -> None:
    options = ServeOptions()
    held = MAX_LARGE_BODIES * options.max_message_bytes
    small = options.limit_concurrency * (SMALL_BODY_BYTES + MAX_HEAD_BYTES)
    assert held + small < 512 * 2**20


def test_files_are_allowed_as_far_as_the_system_lets_us() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        allow_files(300)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (300, hard)
        allow_files(200)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (300, hard)
        allow_files(hard + 1)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[1] == hard
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
