"""What comes from a caller over ASGI: the body, and at any time the news that nobody is there any more.

Knows nothing about what bodies mean.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from http import HTTPStatus

from starlette.datastructures import Headers
from starlette.types import Receive, Scope

from enginewire.backend.frontends.http_api.refusal import Refusal, Refused


class CallerLeft(Exception):
    """Nobody reads the answer."""


async def read_body(scope: Scope, receive: Receive) -> bytearray:
    """The body of a JSON request, which the connection has bounded. Raises Refused and CallerLeft."""
    # Any web page may post a form to this machine; JSON it may not, unless the server allows it.
    if Headers(scope=scope).get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise Refused(Refusal(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "the content type must be application/json"))
    body = bytearray()
    has_more = True
    while has_more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise CallerLeft
        body += message.get("body", b"")
        has_more = message.get("more_body", False)
    return body


async def until_left(receive: Receive, work: Coroutine[None, None, None]) -> None:
    """Run `work` while the caller is there. Raises CallerLeft, and what `work` raises."""
    working = asyncio.create_task(work)
    leaving = asyncio.create_task(_left(receive))
    try:
        await asyncio.wait([working, leaving], return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise CallerLeft
        await working
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
