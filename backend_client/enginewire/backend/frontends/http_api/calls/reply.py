"""The way back to one caller over ASGI.

Holds what can still be said about a failure: a status code before the answer began, an event in the
middle of a stream. Knows nothing about what is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from starlette.types import Send

from enginewire.backend.frontends.http_api.calls.direct_body import DirectBody
from enginewire.backend.frontends.http_api.refusal import Refusal, error_body

JSON_TYPE: Final = "application/json"
TEXT_TYPE: Final = "text/plain; charset=utf-8"
EVENT_TYPE: Final = "text/event-stream; charset=utf-8"


class Reply:
    """One answer on its way out.

    Pieces of a stream that has begun may take the way past ASGI, `direct`, if there is one.
    """

    def __init__(
        self,
        send: Send,
        path: str,
        more: Callable[[], Mapping[str, str]] = dict,
        direct: DirectBody | None = None,
    ) -> None:
        """`path` is what was asked for, see error_form; `more` are headers that every answer has."""
        self._more = more
        self.direct = direct
        self._send = send
        self._path = path
        self._is_begun = False
        self._failed: Callable[[Refusal], bytes] | None = None

    async def begin_events(self, answer_id: str, failed: Callable[[Refusal], bytes]) -> None:
        """Status and headers of a stream; `failed` makes its end when it cannot go on."""
        self._failed = failed
        # Proxies that gather answers would turn a stream into a lump.
        headers = {"cache-control": "no-cache", "x-accel-buffering": "no", "x-request-id": answer_id}
        await self._begin(200, {"content-type": EVENT_TYPE, **headers})

    async def events(self, data: bytes) -> None:
        """A piece of a stream; waits while the caller reads too slowly."""
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def last_events(self, data: bytes) -> None:
        """The end of a stream."""
        await self._send({"type": "http.response.body", "body": data})

    async def whole(self, data: bytes, answer_id: str = "") -> None:
        """An answer in one piece; without an id where nothing was asked of an engine."""
        await self._json(200, data, {"x-request-id": answer_id} if answer_id else {})

    async def text(self, text: str) -> None:
        """An answer for people."""
        data = text.encode()
        await self._begin(200, {"content-type": TEXT_TYPE, "content-length": str(len(data))})
        await self._send({"type": "http.response.body", "body": data})

    async def refuse(self, refusal: Refusal) -> None:
        """An error answer, or the last event of a stream that has begun."""
        if self._is_begun:
            await self.last_events(self._failed(refusal) if self._failed else b"")
        else:
            await self._json(refusal.status, error_body(refusal, self._path), refusal.headers)

    async def _json(self, status: int, data: bytes, headers: Mapping[str, str]) -> None:
        await self._begin(status, {"content-type": JSON_TYPE, "content-length": str(len(data)), **headers})
        await self._send({"type": "http.response.body", "body": data})

    async def _begin(self, status: int, headers: Mapping[str, str]) -> None:
        self._is_begun = True
        raw = [(name.encode(), value.encode()) for name, value in {**headers, **self._more()}.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": raw})
