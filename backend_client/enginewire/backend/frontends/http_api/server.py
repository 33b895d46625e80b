"""The HTTP face as a server: its socket, its beginning and its end.

Knows nothing about routes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import socket
import time
from collections.abc import AsyncIterator, Iterator
from typing import Final

import uvicorn
from starlette.middleware import Middleware

from enginewire.access.access import OPEN, Access
from enginewire.backend.config import ServeOptions
from enginewire.backend.frontends.http_api.app import make_app
from enginewire.backend.frontends.http_api.connection import BoundedConnection, BoundedState, Limits
from enginewire.backend.frontends.http_api.middleware.root_path import RootPath
from enginewire.backend.frontends.http_api.middleware.same_origin import same_origin
from enginewire.backend.frontends.http_api.openai.answers.format import model_formats
from enginewire.backend.frontends.http_api.openai.generate_route import ServedBackend
from enginewire.backend.frontends.text_backend import TextBackend
from enginewire.listening.allowed_hosts import AllowedHosts
from enginewire.listening.sockets import AddressError

# For what callers are told at the end; who does not read that is cut off.
LAST_WORDS_SECONDS: Final = 0.5
# After how many seconds of silence, and then how often.
ASKING: Final = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5}
# Milliseconds, nearly 25 days: the kernel takes no more.
MOST: Final = 2**31 - 1
# Of uvicorn's own, which names none of its modules.
LOGGER: Final = "uvicorn.error"
# Files that are open beside the connections.
SPARE_FILES: Final = 512


class BoundedServer(uvicorn.Server):
    """Looks after its connections, and leaves the process's signals to the command."""

    server_state: BoundedState

    def __init__(self, config: uvicorn.Config, limits: Limits, access: Access) -> None:
        super().__init__(config)
        logging.getLogger(LOGGER).addFilter(_is_news)
        self.server_state = BoundedState(limits, access.tls)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """See uvicorn.Server."""
        yield

    async def look_after_connections(self) -> None:
        """Until it is cancelled."""
        while True:
            await asyncio.sleep(self.server_state.limits.look_seconds)
            for connection in self._connections():
                connection.look(time.monotonic())

    def give_up(self) -> None:
        """Wait no longer for requests that are still being sent."""
        for connection in self._connections():
            connection.give_up()

    def cut_off(self) -> None:
        """End at once whatever is left."""
        self.force_exit = True
        for connection in self._connections():
            connection.transport.abort()

    def _connections(self) -> Iterator[BoundedConnection]:
        for connection in list(self.server_state.connections):
            assert isinstance(connection, BoundedConnection), "the only kind there is"
            yield connection


def _is_news(record: logging.LogRecord) -> bool:
    """False for an answer that ended with the event loop, which uvicorn takes for a mistake of ours."""
    return not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))


class HttpFace:
    """A running server. `address` is the base URL without /v1."""

    def __init__(
        self, backend: TextBackend, options: ServeOptions, listener: socket.socket, access: Access
    ) -> None:
        tls = access.tls
        self.address = url_of(listener, "https" if tls else "http")
        formats = model_formats(backend.tokenizer, options.tool_call_parser, options.reasoning_parser)
        self._served = ServedBackend(
            backend,
            options.timeout,
            formats,
            options.allow_runtime_lora_updating,
            options.served_model_name,
        )
        hosts = AllowedHosts(options.http_host, listener.getsockname()[0], options.allowed_hosts)
        config = uvicorn.Config(
            make_app(self._served, middleware_of(options, hosts), access),
            http=BoundedConnection,
            timeout_keep_alive=options.timeout_keep_alive,
            log_config=None,
            # That it starts and ends is said by those who have it start and end.
            log_level="warning",
            access_log=False,
            server_header=False,
            lifespan="off",
            ws="none",
        )
        # Not by uvicorn's own options: it would read the files once.
        config.load()
        config.ssl = tls.ssl_context() if tls else None
        self._server = BoundedServer(config, limits_of(options), access)
        self._task = asyncio.create_task(self._server.serve(sockets=[listener]), name="http")
        self._looking = asyncio.create_task(self._server.look_after_connections(), name="http connections")

    async def drain(self, timeout: float) -> None:
        """Accept no more connections, and one more request on each that callers believe to be open.

        Answers that take longer than `timeout` seconds are refused.
        """
        self._end()
        await asyncio.wait([self._task], timeout=timeout)
        await self.stop()

    async def stop(self) -> None:
        """End at once, within two times the last words whatever callers do."""
        self._end()
        self._served.refuse_live()
        self._server.give_up()
        await asyncio.wait([self._task], timeout=LAST_WORDS_SECONDS)
        self._looking.cancel()
        self._server.cut_off()
        await asyncio.wait([self._task], timeout=LAST_WORDS_SECONDS)

    def _end(self) -> None:
        self._server.should_exit = True
        self._served.closing.set()


def middleware_of(options: ServeOptions, hosts: AllowedHosts) -> list[Middleware]:
    """What every request passes before its route."""
    rooted = [Middleware(RootPath, root_path=options.root_path)] if options.root_path else []
    return [*same_origin(hosts, options.allowed_origins), *rooted]


def limits_of(options: ServeOptions) -> Limits:
    """What HTTP callers may take."""
    return Limits(
        connections=options.limit_concurrency,
        header_timeout=options.client_header_timeout,
        body_timeout=options.client_body_timeout,
        slow_consumer_timeout=options.slow_consumer_timeout,
        max_body_bytes=options.max_message_bytes,
    )


@contextlib.asynccontextmanager
async def http_face(
    backend: TextBackend, options: ServeOptions, access: Access = OPEN
) -> AsyncIterator[HttpFace]:
    """Serve HTTP inside the context. Raises AddressError."""
    assert options.http_port is not None
    allow_files(options.limit_concurrency + SPARE_FILES)
    with listening(options.http_host, options.http_port) as listener:
        notice_vanished(listener, options.slow_consumer_timeout)
        face = HttpFace(backend, options, listener, access)
        try:
            yield face
        finally:
            await face.stop()


def allow_files(count: int) -> None:
    """Let this process have so many files open, as far as the system lets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < count:
        most = count if hard == resource.RLIM_INFINITY else min(count, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


@contextlib.contextmanager
def listening(host: str, port: int) -> Iterator[socket.socket]:
    """A TCP socket that accepts connections. Raises AddressError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        raise AddressError(f"{host}:{port}: {error.strerror}") from error
    with listener:
        yield listener


def notice_vanished(listener: socket.socket, timeout: float) -> None:
    """Let the kernel end connections whose other end is gone without a word for `timeout` seconds.

    It asks after 10 s in which nobody has sent anything, as gRPC does. What accepts inherits that.
    """
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in {**ASKING, "TCP_USER_TIMEOUT": min(int(timeout * 1000), MOST)}.items():
        # Some are Linux's alone. Elsewhere it takes the system's own hours.
        if hasattr(socket, name):
            listener.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def url_of(listener: socket.socket, scheme: str) -> str:
    """Where a listening socket is reached."""
    host, port = listener.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
