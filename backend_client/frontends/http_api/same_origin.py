"""Keeps other web pages away from what only this server's own page may use.

A page anywhere on the web can make its reader's browser send requests to the reader's own machine
(CSRF), and a name that the page's owner controls can be pointed at it (DNS rebinding). Programs
without a browser are not kept away. Knows nothing about routes.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from backend_client.frontends.http_api.refusal import Refusal
from backend_client.frontends.http_api.reply import Reply
from enginewire.addresses import is_loopback

LOCAL_NAMES: Final = frozenset({"localhost", "127.0.0.1", "::1"})
OWN_SITES: Final = frozenset({"same-origin", "none"})


class OwnHost:
    """Lets requests through whose Host is a name of the address that the server listens at."""

    def __init__(self, app: ASGIApp, http_host: str) -> None:
        """Names of an address beyond loopback are not known here: any is let through."""
        self._app = app
        self._names = LOCAL_NAMES | {http_host} if is_loopback(http_host) else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        host = Headers(scope=scope).get("host", "")
        if self._names is None or host_name(host) in self._names:
            await self._app(scope, receive, send)
        else:
            await Reply(send).refuse(forbidden("the Host header names another server"))


class OwnPage:
    """Lets requests through that no page of another origin has made."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if is_own(Headers(scope=scope)):
            await self._app(scope, receive, send)
        else:
            await Reply(send).refuse(forbidden("a page of another origin may not do that"))


def is_own(headers: Headers) -> bool:
    """What the browser says about the page decides; an old one at least sends Origin."""
    if (site := headers.get("sec-fetch-site")) is not None:
        return site in OWN_SITES
    origin = headers.get("origin")
    return origin is None or urlsplit(origin).netloc == headers.get("host")


def host_name(host: str) -> str:
    """The name in a Host header, without its port; "" when it is none."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def forbidden(message: str) -> Refusal:
    """403."""
    return Refusal(HTTPStatus.FORBIDDEN, message, code="forbidden")
