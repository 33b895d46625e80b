"""One caller's connection: what it may send, how long it may take for that, and how long it may read nothing.

Each limit is answered with its status while an answer is possible; else the connection is cut. Knows
nothing about routes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from enginewire.backend.frontends.http_api.calls.direct_body import offer_direct_body
from enginewire.backend.frontends.http_api.refusal import Refusal, draining, error_body, invalid, overloaded
from enginewire.tls.listener import REFUSAL, ListenerTls

log = logging.getLogger(__name__)

CERTIFICATE: Final = "certificate"
"""Where routes find what the caller has shown in the handshake."""
# As nginx's large_client_header_buffers: 4 of 8 KiB. Each field counts 32 more, as in HTTP/2.
MAX_HEAD_BYTES: Final = 32 * 1024
FIELD_OVERHEAD_BYTES: Final = 32
# Requests that came before the answer to the one before them; hardly anybody sends a second one.
MAX_PIPELINED: Final = 16
# What every unfinished body may hold. Only what is beyond that competes for room.
SMALL_BODY_BYTES: Final = 64 * 1024
MAX_LARGE_BODIES: Final = 32
# Whoever gets a refusal may still be sending; cut off at once, it would never read why.
LINGER_SECONDS: Final = 2.0
# A caller who sends its next request at once, and has not been told that its connection will close.
LAST_REQUEST_SECONDS: Final = 1
# Connections beyond the limit that are told so at the same time.
MAX_TURNED_AWAY: Final = 64


@dataclass(frozen=True, slots=True)
class Limits:
    """What one caller, and all together, may take. Times in seconds."""

    connections: int
    header_timeout: float
    body_timeout: float
    slow_consumer_timeout: float
    max_body_bytes: int

    @property
    def look_seconds(self) -> float:
        """How often to look after connections."""
        return min(1.0, self.header_timeout / 4, self.body_timeout / 4, self.slow_consumer_timeout / 4)


class BoundedState(ServerState):
    """What the connections of one server share: limits, who may come, the room that large bodies hold."""

    def __init__(self, limits: Limits, tls: ListenerTls | None = None) -> None:
        super().__init__()
        self.limits = limits
        self.tls = tls
        self.body_room = MAX_LARGE_BODIES * limits.max_body_bytes


class Exceeded(Exception):
    """A limit; leaves the parser's callbacks."""


class BoundedConnection(HttpToolsProtocol):
    """uvicorn's connection, which by itself takes everything and waits for ever."""

    server_state: BoundedState

    def __init__(
        self,
        config: Config,
        server_state: BoundedState,
        app_state: dict[str, Any],  # uvicorn's type
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._limits = server_state.limits
        # uvicorn has none before the first request.
        self.url = b""
        self._refusal: Refusal | None = None
        self._is_refused = False
        self._is_ending = False
        # When it was made, or the last answer was complete.
        self._free_since = 0.0
        # When what the caller has begun must be complete; None while it owes nothing.
        self._deadline: float | None = None
        self._is_in_body = False
        # The request that is being answered; `cycle` is the one that came last.
        self._answered: RequestResponseCycle | None = None
        self._num_head_bytes = 0
        self._num_body_bytes = 0
        self._num_held_bytes = 0
        # What the parser has taken and not handed on.
        self._num_unparsed_bytes = 0
        self._num_unsent_bytes = 0
        self._sent_at = 0.0
        # What the caller has shown in the handshake, as ssl has it.
        self._certificate: Mapping[str, object] = {}

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn
        """See asyncio.Protocol."""
        super().connection_made(transport)
        if self.server_state.tls is not None:
            self._certificate = transport.get_extra_info("ssl_object").getpeercert() or {}
        self._free_since = time.monotonic()
        self._deadline = self._free_since + self._limits.header_timeout
        num_beyond = len(self.connections) - self._limits.connections
        if num_beyond > MAX_TURNED_AWAY:
            transport.abort()
        elif num_beyond > 0:
            self.refuse(overloaded("too many connections"))
        elif not self._is_allowed():
            self.refuse(Refusal(HTTPStatus.FORBIDDEN, REFUSAL, code="forbidden"))

    def _is_allowed(self) -> bool:
        tls = self.server_state.tls
        return tls is None or tls.allows_peer(self._certificate)

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        self._let_go()
        if self._answered is not None and not self._answered.response_complete:
            self._answered.disconnected = True
            self._answered.message_event.set()
        super().connection_lost(exc)

    def resume_writing(self) -> None:
        """See asyncio.Protocol."""
        self._sent_at = time.monotonic()
        super().resume_writing()

    def shutdown(self) -> None:
        """The server ends. A request that may be on its way is still answered, and is the last one."""
        self._is_ending = True
        self.timeout_keep_alive = min(self.timeout_keep_alive, LAST_REQUEST_SECONDS)
        now = time.monotonic()
        if self._deadline is not None:
            self._deadline = min(self._deadline, now + LAST_REQUEST_SECONDS)
        if self.cycle is not None and not self.cycle.response_complete:
            # Too late for a caller who has read the head of this answer.
            self.cycle.keep_alive = self.cycle.keep_alive and self.cycle.response_started
        elif self._deadline is None or self.cycle is None:
            self._close_if_idle_for(max(0.0, self._free_since + LAST_REQUEST_SECONDS - now))

    def _close_if_idle_for(self, seconds: float) -> None:
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(seconds, self.timeout_keep_alive_handler)

    def give_up(self) -> None:
        """The time of the server is over: who still sends a request is told so."""
        if self._deadline is not None and self._can_be_answered():
            self.refuse(draining())

    def look(self, now: float) -> None:
        """Called again and again: end what takes too long. `now` as of time.monotonic."""
        if self._is_stalled(now):
            log.info("a caller read nothing for %g s", self._limits.slow_consumer_timeout)
            self.transport.abort()
        elif self._deadline is not None and self.pipeline:
            # It is us who do not read on.
            self._deadline = now + self._limits.body_timeout
        elif self._deadline is not None and now > self._deadline:
            self.refuse(draining() if self._is_ending else self._too_slow())

    def _is_stalled(self, now: float) -> bool:
        """True when unsent bytes have not become fewer for too long."""
        num_unsent = self.transport.get_write_buffer_size()
        if num_unsent == 0 or self._num_unsent_bytes == 0 or num_unsent < self._num_unsent_bytes:
            self._sent_at = now
        self._num_unsent_bytes = num_unsent
        return num_unsent > 0 and now - self._sent_at > self._limits.slow_consumer_timeout

    # What the caller sends.

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        if self._is_refused:
            return
        if self._deadline is None and (self.cycle is None or self.cycle.response_complete):
            self._deadline = time.monotonic() + self._limits.header_timeout
        self._num_unparsed_bytes += len(data)
        super().data_received(data)
        if self._num_unparsed_bytes > MAX_HEAD_BYTES:
            self.refuse(too_large_head())

    def on_message_begin(self) -> None:
        """See httptools."""
        self._num_head_bytes = self._num_body_bytes = 0
        super().on_message_begin()
        self.scope["state"][CERTIFICATE] = self._certificate

    def on_url(self, url: bytes) -> None:
        """See httptools."""
        super().on_url(url)
        self._take_head(len(url), Refusal(HTTPStatus.REQUEST_URI_TOO_LONG, "the path is too long"))

    def on_header(self, name: bytes, value: bytes) -> None:
        """See httptools; fields behind a body come here too."""
        self._take_head(len(name) + len(value) + FIELD_OVERHEAD_BYTES, too_large_head())
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """See httptools."""
        self._num_unparsed_bytes = 0
        if len(self.pipeline) >= MAX_PIPELINED:
            raise self._exceeds(overloaded("too many requests at once on one connection"))
        lengths = [value for name, value in self.headers if name == b"content-length"]
        # The parser has refused whatever is no number.
        if lengths and int(lengths[0]) > self._limits.max_body_bytes:
            raise self._exceeds(self._too_large_body())
        super().on_headers_complete()
        offer_direct_body(self.cycle)
        if self._is_ending:
            self.cycle.keep_alive = False
        if not self.pipeline:
            self._answered = self.cycle
        self._is_in_body = True
        self._deadline = time.monotonic() + self._limits.body_timeout

    def on_body(self, body: bytes) -> None:
        """See httptools."""
        self._num_unparsed_bytes = 0
        self._num_body_bytes += len(body)
        if self._num_body_bytes > self._limits.max_body_bytes:
            raise self._exceeds(self._too_large_body())
        self._hold(self._num_body_bytes - SMALL_BODY_BYTES)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """See httptools."""
        self._num_unparsed_bytes = 0
        self._is_in_body = False
        self._deadline = None
        self._let_go()
        super().on_message_complete()
        if self.cycle.response_complete:
            # What came of the body has stopped the clock that the answer had started.
            self._close_if_idle_for(self.timeout_keep_alive)

    def on_response_complete(self) -> None:
        """See uvicorn."""
        if self.pipeline:
            self._answered = self.pipeline[-1][0]
        self._free_since = time.monotonic()
        super().on_response_complete()

    def _take_head(self, num_bytes: int, refusal: Refusal) -> None:
        """Raises Exceeded."""
        self._num_unparsed_bytes = 0
        self._num_head_bytes += num_bytes
        if self._num_head_bytes > MAX_HEAD_BYTES:
            raise self._exceeds(refusal)

    def _hold(self, num_bytes: int) -> None:
        """Take room for what the body has beyond a small one. Raises Exceeded."""
        if num_bytes > self._num_held_bytes:
            self.server_state.body_room -= num_bytes - self._num_held_bytes
            self._num_held_bytes = num_bytes
            if self.server_state.body_room < 0:
                raise self._exceeds(overloaded("too many large requests at once"))

    def _let_go(self) -> None:
        self.server_state.body_room += self._num_held_bytes
        self._num_held_bytes = 0

    def _too_slow(self) -> Refusal:
        what = "body" if self._is_in_body else "head"
        return Refusal(HTTPStatus.REQUEST_TIMEOUT, f"the {what} of the request took too long")

    def _too_large_body(self) -> Refusal:
        message = f"the body has more than {self._limits.max_body_bytes} bytes"
        return Refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, message)

    # What it is told.

    def _exceeds(self, refusal: Refusal) -> Exceeded:
        """Raised in a callback, it makes the parser fail, and that calls `send_400_response`."""
        self._refusal = refusal
        return Exceeded(refusal.message)

    def send_400_response(self, msg: str) -> None:
        """See uvicorn."""
        self.refuse(self._refusal or invalid(msg))

    def refuse(self, refusal: Refusal) -> None:
        """Answer what has not come completely, then close; or only close."""
        can_be_answered = self._can_be_answered()
        self._is_refused = True
        self._let_go()
        if self._is_in_body:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if not can_be_answered:
            self.transport.abort()
            return
        self._unset_keepalive_if_required()
        self.flow.resume_reading()
        self.transport.write(whole_response(refusal, self.url.decode("latin-1")))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        else:  # TLS says in its own way that nothing more will come
            self.transport.close()
        self.loop.call_later(LINGER_SECONDS, self.transport.abort)

    def _can_be_answered(self) -> bool:
        """False once it was refused, and while or after the request gets an answer in another way."""
        if self._is_refused or self.pipeline or self.transport.is_closing():
            return False
        if self._is_in_body:
            return not self.cycle.response_started
        return self.cycle is None or self.cycle.response_complete


def whole_response(refusal: Refusal, path: str) -> bytes:
    """Status line, headers and body, for whoever asked for `path`."""
    body = error_body(refusal, path)
    headers = {
        "content-type": "application/json",
        "content-length": str(len(body)),
        "connection": "close",
        **refusal.headers,
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return b"%b%b\r\n%b" % (STATUS_LINE[refusal.status], lines.encode(), body)


def too_large_head() -> Refusal:
    """431."""
    status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
    return Refusal(status, f"path and headers have more than {MAX_HEAD_BYTES} bytes")
