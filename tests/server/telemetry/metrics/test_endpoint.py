"""The little HTTP that a scraper needs, and what it does not let others do."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import psutil
import pytest

from enginewire.access.access import Access
from enginewire.access.api_keys import ApiKeys
from enginewire.access.roles import Role
from enginewire.listening.sockets import AddressError
from enginewire.server.telemetry.metrics import endpoint as endpoint_module
from enginewire.server.telemetry.metrics.endpoint import MOST_CONNECTIONS, MetricsEndpoint
from tests.keys import ALL_KEYS, KEYS, UNKNOWN_KEY
from tests.patience import PATIENCE_SECONDS

READ_KEY = KEYS[Role.READ]


class Page:
    """What is served; `failure` instead, if there is one."""

    def __init__(self) -> None:
        self.failure: Exception | None = None
        self.accepts: list[str] = []
        self.content = b"up 1\n"

    def __call__(self, accept: str) -> tuple[bytes, str]:
        if self.failure:
            raise self.failure
        self.accepts.append(accept)
        return self.content, "text/plain; version=0.0.4"


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
        await exchange(
            endpoint, b"GET /metrics HTTP/1.1\r\nHost: localhost:1\r\naccept: text/plain;q=1\r\n\r\n"
        )
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


@pytest.mark.parametrize(
    ("host", "status"),
    [(b"127.0.0.1:9090", b"200"), (b"10.0.0.7:9090", b"200"), (b"evil.example", b"403"), (b"", b"403")],
)
async def test_a_name_that_was_pointed_at_this_machine_is_refused(endpoint, host, status):
    answer = await exchange(endpoint, b"GET /metrics HTTP/1.1\r\nHost: " + host + b"\r\n\r\n")
    assert answer.split(b" ", 2)[1] == status


async def test_a_head_without_end_is_refused(endpoint):
    answer = await exchange(endpoint, b"GET /metrics HTTP/1.1\r\nx: " + b"y" * 70_000)
    assert answer.startswith(b"HTTP/1.1 431 ")


async def test_who_says_nothing_is_told_so_and_cut_off(endpoint, monkeypatch):
    monkeypatch.setattr(endpoint_module, "ANSWER_SECONDS", 0.4)
    assert (await exchange(endpoint, b"GET /metrics")).startswith(b"HTTP/1.1 408 ")


async def test_no_more_than_a_few_are_served_at_a_time(endpoint):
    waiting = [await connect(endpoint) for _ in range(MOST_CONNECTIONS)]
    refused = await exchange(endpoint, b"GET /metrics HTTP/1.1\r\n\r\n")
    assert refused.startswith(b"HTTP/1.1 503 ")
    assert b"\r\nretry-after: 5\r\n" in refused
    reader, writer = waiting[0]
    writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
    assert b" 200 " in await reader.read()
    writer.close()
    assert b" 200 " in await exchange(endpoint, b"GET /metrics HTTP/1.1\r\n\r\n")
    for _, writer in waiting:
        writer.close()


async def test_far_too_many_are_not_even_told(endpoint):
    waiting = [await connect(endpoint) for _ in range(2 * MOST_CONNECTIONS)]
    assert await exchange(endpoint, b"GET /metrics HTTP/1.1\r\n\r\n") == b""
    for _, writer in waiting:
        writer.close()


async def test_who_reads_nothing_is_cut_off_and_does_not_hold_up_the_end(endpoint, page, monkeypatch):
    monkeypatch.setattr(endpoint_module, "ANSWER_SECONDS", 0.1)
    page.content = b"x" * 10_000_000
    port = int(endpoint.url.removesuffix("/metrics").rpartition(":")[2])
    with socket.socket() as stalled:
        stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stalled.connect(("127.0.0.1", port))
        stalled.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not page.accepts or connections_at(port):  # noqa: ASYNC110  # no event tells
                await asyncio.sleep(0.02)


def connections_at(port: int) -> int:
    """Those that the server still holds open."""
    return sum(
        connection.laddr.port == port and connection.status == psutil.CONN_ESTABLISHED
        for connection in psutil.Process().net_connections("tcp")
    )


async def test_closing_ends_what_is_open(endpoint, monkeypatch):
    monkeypatch.setattr(endpoint_module, "ANSWER_SECONDS", 3600.0)
    reader, writer = await connect(endpoint)
    await exchange(endpoint, b"GET / HTTP/1.1\r\n\r\n")  # by then the server knows of the other
    endpoint.close()
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert await reader.read() == b""
    writer.close()


async def test_an_address_in_use_is_told_with_the_option(endpoint):
    port = int(endpoint.url.removesuffix("/metrics").rpartition(":")[2])
    with pytest.raises(AddressError, match=f"--metrics-port: 127.0.0.1:{port}: .*in use"):
        await MetricsEndpoint(Page()).open("127.0.0.1", port)


async def test_with_keys_the_page_needs_one_that_may_read(page: Page) -> None:
    endpoint = MetricsEndpoint(page)
    await endpoint.open("127.0.0.1", 0, Access(keys=ApiKeys(ALL_KEYS)))
    told = []
    for given in ("", f"Authorization: Bearer {UNKNOWN_KEY}\r\n", f"authorization: bearer {READ_KEY}\r\n"):
        request = f"GET /metrics HTTP/1.1\r\nhost: localhost\r\n{given}\r\n"
        told.append((await exchange(endpoint, request.encode())).partition(b"\r\n\r\n")[0])
    endpoint.close()
    assert [head.split()[1] for head in told] == [b"401", b"401", b"200"]
    assert b"www-authenticate: Bearer" in told[0]
    assert len(page.accepts) == 1
