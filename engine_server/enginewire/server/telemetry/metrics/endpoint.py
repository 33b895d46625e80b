"""GET /metrics over HTTP, on the server's own event loop.

As little HTTP as a scraper needs: one request per connection, few connections, short heads, little time for
a whole connection. Serving it here and not in a thread lets engines be asked where all their calls happen.
Whatever goes wrong ends one connection. Knows nothing about metrics.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from http import HTTPStatus
from typing import Final

from enginewire.access.access import OPEN, Access, Forbidden, Unknown, bearer
from enginewire.access.roles import Role
from enginewire.listening.allowed_hosts import AllowedHosts
from enginewire.listening.sockets import AddressError

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
        self._hosts: AllowedHosts | None = None
        self._access = OPEN
        self.url = ""

    async def open(self, host: str, port: int, access: Access = OPEN) -> None:
        """Listen; port 0 is a free one. Raises AddressError."""
        self._access, tls = access, access.tls
        shown_host = f"[{host}]" if ":" in host else host
        try:
            self._server = await asyncio.start_server(
                self._serve,
                host,
                port,
                limit=MOST_HEAD_BYTES,
                ssl=tls.ssl_context() if tls else None,
                ssl_handshake_timeout=ANSWER_SECONDS if tls else None,
            )
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise AddressError(f"--metrics-port: {shown_host}:{port}: {reason}") from error
        address, bound = self._server.sockets[0].getsockname()[:2]
        self._hosts = AllowedHosts(host, address)
        self.url = f"{'https' if tls else 'http'}://{shown_host}:{bound}{PATH}"

    def close(self) -> None:
        """Listen no more, and end what is open. Idempotent."""
        if self._server is not None:
            self._server.close()
        for writer in self._open:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Whoever does not read shall be noticed while there is time, not when it is closed.
        writer.transport.set_write_buffer_limits(0)
        if len(self._open) == 2 * MOST_CONNECTIONS:
            writer.transport.abort()
            return
        self._open.add(writer)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                is_allowed = self._allows(writer)
                writer.write(await self._answer_to(reader) if is_allowed else _response(HTTPStatus.FORBIDDEN))
                await writer.drain()
                if writer.can_write_eof():
                    writer.write_eof()
                else:  # TLS
                    writer.close()
                # Cut off before it has sent everything, a caller would not read why it was refused.
                while await reader.read(MOST_HEAD_BYTES):
                    pass
        except (TimeoutError, asyncio.IncompleteReadError, ConnectionError):
            pass  # too slow, or gone
        finally:
            self._open.remove(writer)
            writer.transport.abort()

    def _allows(self, writer: asyncio.StreamWriter) -> bool:
        tls, handshake = self._access.tls, writer.get_extra_info("ssl_object")
        return tls is None or tls.allows_peer(handshake.getpeercert())

    async def _answer_to(self, reader: asyncio.StreamReader) -> bytes:
        if len(self._open) > MOST_CONNECTIONS:
            return _response(HTTPStatus.SERVICE_UNAVAILABLE, fields=f"retry-after: {ANSWER_SECONDS:.0f}\r\n")
        try:
            async with asyncio.timeout(ANSWER_SECONDS / 2):
                return self._answer(await reader.readuntil(b"\r\n\r\n"))
        except TimeoutError:
            return _response(HTTPStatus.REQUEST_TIMEOUT)
        except asyncio.LimitOverrunError:
            return _response(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)

    def _answer(self, head: bytes) -> bytes:
        request, *headers = head.decode("latin-1").split("\r\n")
        method, _, rest = request.partition(" ")
        if rest.partition(" ")[0].partition("?")[0] != PATH:
            return _response(HTTPStatus.NOT_FOUND)
        if method != "GET":
            return _response(HTTPStatus.METHOD_NOT_ALLOWED)
        fields = [
            (name.lower(), value.strip()) for name, _, value in (line.partition(":") for line in headers)
        ]
        host = next((value for name, value in fields if name == "host"), None)
        if self._hosts is not None and not self._hosts.allows(host):
            return _response(HTTPStatus.FORBIDDEN)
        try:
            brought = bearer(value for name, value in fields if name == "authorization")
            self._access.caller_with(brought, Role.READ)
        except Unknown:
            return _response(HTTPStatus.UNAUTHORIZED, fields="www-authenticate: Bearer\r\n")
        except Forbidden:
            return _response(HTTPStatus.FORBIDDEN)
        accepts = ",".join(value for name, value in fields if name == "accept")
        try:
            content, content_type = self._page(accepts)
            return _response(HTTPStatus.OK, content, content_type)
        except Exception:  # an engine's own metrics may raise anything; requests go on without them
            log.exception("the metrics cannot be shown")
            return _response(HTTPStatus.INTERNAL_SERVER_ERROR)


def _response(
    status: HTTPStatus, content: bytes = b"", content_type: str = "text/plain", fields: str = ""
) -> bytes:
    """`fields` are more lines of the head."""
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: {content_type}\r\n"
        f"content-length: {len(content)}\r\n{fields}connection: close\r\n\r\n"
    )
    return head.encode("latin-1") + content
