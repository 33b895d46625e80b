"""GET /metrics over HTTP, on the server's own event loop.

As little HTTP as a scraper needs: one request per connection, few connections, short heads, little time.
Serving it here and not in a thread lets engines be asked where all their calls happen. Whatever goes wrong
ends one connection. Knows nothing about metrics.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from http import HTTPStatus
from typing import Final

from engine_server.sockets import AddressError

log = logging.getLogger(__name__)

Page = Callable[[str], tuple[bytes, str]]
"""From the Accept header to the content and its type."""

PATH: Final = "/metrics"
MOST_CONNECTIONS: Final = 16
MOST_HEAD_BYTES: Final = 8 * 1024
# A scraper on the same network needs milliseconds.
ANSWER_SECONDS: Final = 5.0


class MetricsEndpoint:
    """Listens at one address from `open` to `close`."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self.url = ""

    async def open(self, host: str, port: int) -> None:
        """Listen; port 0 is a free one. Raises AddressError."""
        shown_host = f"[{host}]" if ":" in host else host
        try:
            self._server = await asyncio.start_server(self._serve, host, port, limit=MOST_HEAD_BYTES)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise AddressError(f"--metrics-port: {shown_host}:{port}: {reason}") from error
        self.url = f"http://{shown_host}:{self._server.sockets[0].getsockname()[1]}{PATH}"

    def close(self) -> None:
        """Listen no more, and end what is open. Idempotent."""
        if self._server is not None:
            self._server.close()
        for writer in self._open:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            if len(self._open) <= MOST_CONNECTIONS:
                async with asyncio.timeout(ANSWER_SECONDS):
                    writer.write(self._answer(await reader.readuntil(b"\r\n\r\n")))
                    await writer.drain()
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
            pass  # too slow, too long, or gone
        finally:
            self._open.remove(writer)
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    def _answer(self, head: bytes) -> bytes:
        request, *headers = head.decode("latin-1").split("\r\n")
        method, _, rest = request.partition(" ")
        if rest.partition(" ")[0].partition("?")[0] != PATH:
            return _response(HTTPStatus.NOT_FOUND)
        if method != "GET":
            return _response(HTTPStatus.METHOD_NOT_ALLOWED)
        fields = (line.partition(":") for line in headers)
        accepts = [value.strip() for name, _, value in fields if name.lower() == "accept"]
        try:
            return _response(HTTPStatus.OK, *self._page(",".join(accepts)))
        except Exception:  # an engine's own metrics may raise anything; requests go on without them
            log.exception("the metrics cannot be shown")
            return _response(HTTPStatus.INTERNAL_SERVER_ERROR)


def _response(status: HTTPStatus, content: bytes = b"", content_type: str = "text/plain") -> bytes:
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: {content_type}\r\n"
        f"content-length: {len(content)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode("latin-1") + content
