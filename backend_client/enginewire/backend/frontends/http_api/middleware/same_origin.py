"""Keeps web pages away from a server on their reader's machine or network.

A page anywhere on the web can make its reader's browser send requests to the reader's own machine
(CSRF), and a name that the page's owner controls can be pointed at it (DNS rebinding). Programs
without a browser are not kept away. Knows nothing about routes.
"""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from enginewire.backend.frontends.http_api.calls.reply import Reply
from enginewire.backend.frontends.http_api.refusal import Refusal
from enginewire.listening.allowed_hosts import ANY, AllowedHosts

OWN_SITES: Final = frozenset({"same-origin", "none"})


def same_origin(hosts: AllowedHosts, origins: Sequence[str]) -> list[Middleware]:
    """What every request passes first. Pages of `origins` may use everything, `*` are all pages."""
    cors = Middleware(
        CORSMiddleware, allow_origins=origins, allow_methods=["GET", "POST"], allow_headers=["*"]
    )
    return [Middleware(SameOrigin, hosts=hosts, origins=origins), *([cors] if origins else [])]


class SameOrigin:
    """Lets requests through that name this server and that no page of a foreign origin has made."""

    def __init__(self, app: ASGIApp, hosts: AllowedHosts, origins: Sequence[str]) -> None:
        self._app = app
        self._hosts = hosts
        self._origins = frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        headers = Headers(scope=scope)
        reply = Reply(send, scope["path"])
        if not self._hosts.allows(headers.get("host")):
            await reply.refuse(forbidden("the Host header names another server; see --allowed-hosts"))
        elif not (is_own(headers) or is_visit(scope["method"], headers) or self._may(headers.get("origin"))):
            await reply.refuse(forbidden("a page of another origin may not do that; see --allowed-origins"))
        else:
            await self._app(scope, receive, send)

    def _may(self, origin: str | None) -> bool:
        return ANY in self._origins or origin in self._origins


def is_own(headers: Headers) -> bool:
    """What the browser says about the page decides; an old one at least sends Origin."""
    if (site := headers.get("sec-fetch-site")) is not None:
        return site in OWN_SITES
    origin = headers.get("origin")
    return origin is None or urlsplit(origin).netloc == headers.get("host")


def is_visit(method: str, headers: Headers) -> bool:
    """Somebody follows a link on another page, which does not see what comes back."""
    asked = (method, headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest"))
    return asked == ("GET", "navigate", "document")


def forbidden(message: str) -> Refusal:
    """403."""
    return Refusal(HTTPStatus.FORBIDDEN, message, code="forbidden")
