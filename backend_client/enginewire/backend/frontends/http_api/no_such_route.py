"""What a caller is told who asks for a route or a method that is not there: which ones are.

Knows nothing about what routes do.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from http import HTTPStatus

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route

from enginewire.backend.frontends.http_api.json_response import as_json
from enginewire.backend.frontends.http_api.refusal import Refusal, error_fields


async def no_such_route(request: Request, error: Exception) -> Response:
    """404 with every route beside the error; 405 with Allow."""
    assert isinstance(error, HTTPException)
    if error.status_code == HTTPStatus.NOT_FOUND:
        routes = sorted(shown(request.app.routes))
        refusal = Refusal(error.status_code, advice(request, routes), code="route_not_found")
        return as_json({**error_fields(refusal, request.url.path), "routes": routes}, refusal.status)
    allowed = (error.headers or {}).get("Allow", "")
    refusal = Refusal(error.status_code, f"not with this method, only with {allowed}", code="wrong_method")
    answer = as_json(error_fields(refusal, request.url.path), refusal.status)
    answer.headers.update(error.headers or {})
    return answer


def advice(request: Request, routes: Collection[str]) -> str:
    """What to ask for instead. The usual mistake is a base URL that lacks `/v1`, or has it twice."""
    path = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
    for near in (f"/v1{path}", path.removeprefix("/v1")):
        if f"{request.method} {near}" in routes:
            return f"no such route; {near} is one: does the client's base URL end with /v1, once?"
    return "no such route; this answer lists those that there are under routes"


def shown(routes: Iterable[BaseRoute], prefix: str = "") -> Iterator[str]:
    """Each route as its method and path, such as `POST /v1/completions`."""
    for route in routes:
        if isinstance(route, Mount):
            yield from shown(route.routes, prefix + route.path)
        elif isinstance(route, Route):
            # Whoever has GET has HEAD.
            for method in (route.methods or set()) - {"HEAD"}:
                yield f"{method} {prefix}{route.path_format}"
