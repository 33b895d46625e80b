"""The little HTTP that a scraper needs, and what it does not let others do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from engine_server.metrics import endpoint as endpoint_module
from engine_server.metrics.endpoint import MOST_CONNECTIONS, MetricsEndpoint
from engine_server.sockets import AddressError


class Page:
    """What is served; `failure` instead, if there is one."""

    def __init__(self) -> None:
        self.failure: Exception | None = None
        self.accepts: list[str] = []

    def __call__(self, accept: str) -> tuple[bytes, str]:
        if self.failure:
            raise self.failure
        self.accepts.append(accept)
        return b"up 1\n", "text/plain; version=0.0.4"


@pytest.fixture
def page() -> Page:
    return Page()


@pytest.fixture
async def endpoint(page: Page) -> AsyncIterator[MetricsEndpoint]:
    endpoint = MetricsEndpoint(page)
    await endpoint.open("127.0.0.1", 0)
    yield endpoint
    endpoint.close()


async def connect(endpoint: MetricsEndpoint) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    port = int(endpoint.url.removesuffix("/metrics").rpartition(":")[2])
    return await asyncio.open_connection("127.0.0.1", port)


async def exchange(endpoint: MetricsEndpoint, request: bytes) -> bytes:
    """All that comes back until the server closes; nothing when it does not even read."""
    reader, writer = await connect(endpoint)
    try:
        writer.write(request)
        return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


async def test_the_page_comes_with_its_type_and_length(endpoint, page):
    head, _, body = (
        await exchange(endpoint, b"GET /metrics HTTP/1.1\r\nHost: x\r\naccept: text/plain;q=1\r\n\r\n")
    ).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"content-type: text/plain; version=0.0.4\r\ncontent-length: 5\r\n" in head
    assert body == b"up 1\n"
    assert page.accepts == ["text/plain;q=1"]


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        (b"GET /metrics?name[]=up HTTP/1.0", b"200"),
        (b"GET / HTTP/1.1", b"404"),
        (b"GET /metrics/.. HTTP/1.1", b"404"),
        (b"POST /metrics HTTP/1.1", b"405"),
        (b"\xff\xfe", b"404"),
    ],
)
async def test_only_the_page_can_be_read_and_nothing_written(endpoint, request_line, status):
    answer = await exchange(endpoint, request_line + b"\r\n\r\n")
    assert answer.split(b" ", 2)[1] == status


async def test_a_page_that_cannot_be_made_is_an_error_of_that_answer_alone(endpoint, page, caplog):
    page.failure = RuntimeError("an engine's collector")
    assert b" 500 " in await exchange(endpoint, b"GET /metrics HTTP/1.1\r\n\r\n")
    assert "the metrics cannot be shown" in caplog.text
    page.failure = None
    assert b" 200 " in await exchange(endpoint, b"GET /metrics HTTP/1.1\r\n\r\n")


async def test_a_head_without_end_is_cut_off(endpoint):
    assert await exchange(endpoint, b"GET /metrics HTTP/1.1\r\nx: " + b"y" * 70_000) == b""


async def test_who_says_nothing_is_cut_off(endpoint, monkeypatch):
    monkeypatch.setattr(endpoint_module, "ANSWER_SECONDS", 0.01)
    assert await exchange(endpoint, b"GET /metrics") == b""


async def test_no_more_than_a_few_are_served_at_a_time(endpoint):
    waiting = [await connect(endpoint) for _ in range(MOST_CONNECTIONS)]
    assert await exchange(endpoint, b"GET /metrics HTTP/1.1\r\n\r\n") == b""
    reader, writer = waiting[0]
    writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
    assert b" 200 " in await reader.read()
    assert b" 200 " in await exchange(endpoint, b"GET /metrics HTTP/1.1\r\n\r\n")
    for _, writer in waiting:
        writer.close()


async def test_closing_ends_what_is_open(endpoint, monkeypatch):
    monkeypatch.setattr(endpoint_module, "ANSWER_SECONDS", 3600.0)
    reader, writer = await connect(endpoint)
    await exchange(endpoint, b"GET / HTTP/1.1\r\n\r\n")  # by then the server knows of the other
    endpoint.close()
    async with asyncio.timeout(10):
        assert await reader.read() == b""
    writer.close()


async def test_an_address_in_use_is_told_with_the_option(endpoint):
    port = int(endpoint.url.removesuffix("/metrics").rpartition(":")[2])
    with pytest.raises(AddressError, match=f"--metrics-port: 127.0.0.1:{port}: .*in use"):
        await MetricsEndpoint(Page()).open("127.0.0.1", port)
