"""The guard before each route: who calls, and what a caller is told whose key is missing, wrong or too weak.

Whether a key is good is up to `enginewire.access`, the same for every face. Knows nothing about routes.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Final

from starlette.datastructures import Headers
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from enginewire.access.access import Access, Denied, Unknown, bearer
from enginewire.access.audit import AuditLog
from enginewire.access.caller import caller, serve_for
from enginewire.access.roles import Role
from enginewire.backend.frontends.http_api.calls.reply import Reply
from enginewire.backend.frontends.http_api.connection import CERTIFICATE
from enginewire.backend.frontends.http_api.refusal import Refusal
from enginewire.tls.listener import names_of

KEY_OF_ANTHROPIC: Final = "x-api-key"


def guarded(
    routes: Sequence[BaseRoute],
    roles: Mapping[str, Role | None],
    access: Access,
    audit: AuditLog | None = None,
    prefix: str = "",
) -> list[BaseRoute]:
    """The same routes behind a guard each, by their paths. One that has no role is a mistake: KeyError.

    The role None is for routes that are open to all who reach the server.
    """
    for route in routes:
        if isinstance(route, Mount):
            guarded(route.routes, roles, access, audit, prefix + route.path)
            continue
        assert isinstance(route, Route), "there is no third kind here"
        role = roles[prefix + route.path]
        if role is not None:
            route.app = RouteGuard(route.app, access, role, audit, prefix + route.path)
    return list(routes)


class RouteGuard:
    """Lets callers through who have the role, before anything of the body is read."""

    def __init__(self, app: ASGIApp, access: Access, role: Role, audit: AuditLog | None, path: str) -> None:
        self._audit = audit
        self._path = path
        self._app = app
        self._access = access
        self._role = role

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if self._audit is None:
            await self._serve(scope, receive, send)
            return
        began, statuses = time.monotonic(), list[int]()

        async def noting(message: Message) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])
            await send(message)

        try:
            await self._serve(scope, receive, noting)
        finally:
            self._audit.call(
                who=caller().party.tenant,
                method=f"{scope['method']} {self._path}",
                outcome=str(statuses[0]) if statuses else "CANCELLED",
                seconds=time.monotonic() - began,
            )

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        brought = [*bearer(headers.getlist("authorization")), *headers.getlist(KEY_OF_ANTHROPIC)]
        try:
            who = self._access.caller_with(brought, self._role)
            if self._access.tells_certificates_apart:
                shown = scope["state"][CERTIFICATE]
                names = names_of(shown) or [str(shown.get("subject"))]
                who = self._access.with_certificate(who, names, self._role)
        except Denied as denied:
            self._access.count(denied)
            await Reply(send, scope["path"]).refuse(refusal_of_caller(denied))
            return
        serve_for(who)
        await self._app(scope, receive, send)


def refusal_of_caller(denied: Denied) -> Refusal:
    """401 as OpenAI's clients know it, or 403."""
    if isinstance(denied, Unknown):
        return Refusal(HTTPStatus.UNAUTHORIZED, str(denied), code="invalid_api_key")
    return Refusal(HTTPStatus.FORBIDDEN, str(denied), code="forbidden")
