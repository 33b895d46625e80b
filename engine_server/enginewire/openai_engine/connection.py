"""The way to a completions server: JSON there and back, and streams of server-sent events.

Redirects are not followed, proxies of the environment not used, and what comes is bounded. A connection
serves one request: closing it is how a request is cancelled, and none can have died of age. Knows nothing
about what is asked.
"""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import httpx2

from enginewire.openai_engine.failure import Refused, one_line
from enginewire.openai_engine.options import OpenAIEngineOptions
from enginewire.server.engines.remote.watch import Lost
from enginewire.server.failures import EngineMistake

Json = Mapping[str, Any]

ANSWER_SECONDS: Final = 5.0
CONNECT_SECONDS: Final = 5.0
SEND_SECONDS: Final = 30.0
MOST_BYTES: Final = 64 * 2**20
"""Of one answer, and of one event: log-probabilities of a whole vocabulary are some megabytes."""
OK: Final = 200


class Connection:
    """Calls to one server. Every method raises Lost, Refused and EngineMistake."""

    def __init__(self, options: OpenAIEngineOptions) -> None:
        # It would log a line for each request.
        logging.getLogger(httpx2.__name__).setLevel(logging.WARNING)
        self.target = options.target
        self._key = options.api_key
        self._client = httpx2.AsyncClient(
            base_url=options.target.rstrip("/").removesuffix("/v1"),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=0),
            follow_redirects=False,
            trust_env=False,
        )

    async def get(self, path: str, seconds: float | None = None) -> Json:
        """What the server says there."""
        async with self._opened("GET", path, None, seconds or ANSWER_SECONDS) as response:
            return _object(await _whole(response))

    async def reach(self, path: str, seconds: float | None = None) -> None:
        """Return when the server answers there with success, whatever it says."""
        async with self._opened("GET", path, None, seconds or ANSWER_SECONDS) as response:
            await _whole(response)

    async def post(self, path: str, body: Json, seconds: float | None = None) -> Json:
        """The answer to a body. Without `seconds` it may take its time."""
        async with self._opened("POST", path, body, seconds) as response:
            return _object(await _whole(response))

    async def events(self, path: str, body: Json) -> AsyncGenerator[Json, None]:
        """The data of each event, until the server has said that there are no more, or ends the answer."""
        async with self._opened("POST", path, body, None) as response:
            async for line in _lines(response):
                name, _, data = line.partition(b":")
                if name == b"error":  # as llama-server once did
                    raise Refused.by(response.status_code, _object(data))
                if name != b"data":
                    continue
                if data.strip() == b"[DONE]":
                    return
                event = _object(data)
                if "error" in event:
                    raise Refused.by(response.status_code, event)
                yield event

    async def close(self) -> None:
        """End every call."""
        await self._client.aclose()

    @asynccontextmanager
    async def _opened(
        self, method: str, path: str, body: Json | None, seconds: float | None
    ) -> AsyncIterator[httpx2.Response]:
        headers = dict([self._key.authorization]) if self._key else {}
        timeout = httpx2.Timeout(seconds, connect=CONNECT_SECONDS, write=SEND_SECONDS)
        request = self._client.build_request(method, path, json=body, headers=headers, timeout=timeout)
        try:
            response = await self._sent(request)
            try:
                if response.status_code != OK:
                    raise Refused.by(response.status_code, _anything(await _whole(response)))
                yield response
            finally:
                await response.aclose()
        except httpx2.TransportError as error:
            raise Lost(f"{type(error).__name__} {one_line(str(error))}") from error

    async def _sent(self, request: httpx2.Request) -> httpx2.Response:
        try:
            return await self._client.send(request, stream=True)
        except AttributeError as error:
            # anyio asks a socket for its names that was closed as soon as it was connected.
            raise Lost("closed at once") from error


async def _whole(response: httpx2.Response) -> bytes:
    whole = bytearray()
    async for chunk in response.aiter_bytes():
        whole += chunk
        if len(whole) > MOST_BYTES:
            raise EngineMistake(f"an answer of more than {MOST_BYTES} bytes")
    return bytes(whole)


async def _lines(response: httpx2.Response) -> AsyncIterator[bytes]:
    """As server-sent events have them, without the empty ones."""
    rest = bytearray()
    async for chunk in response.aiter_bytes():
        rest += chunk
        if b"\n" not in chunk:
            if len(rest) > MOST_BYTES:
                raise EngineMistake(f"an event of more than {MOST_BYTES} bytes")
            continue
        *lines, last = bytes(rest).split(b"\n")
        rest = bytearray(last)
        for line in lines:
            if line.strip():
                yield line.rstrip(b"\r")


def _object(text: bytes) -> Json:
    found = _anything(text)
    if not isinstance(found, Mapping):
        raise EngineMistake("the server's answer is not a JSON object")
    return found


def _anything(text: bytes) -> object:
    """What the JSON says, or the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text.decode("utf-8", "replace")
