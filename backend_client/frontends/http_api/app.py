"""The routes of the HTTP face: two that generate, and the facts about model, health and version.

Knows nothing about sockets.
"""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from backend_client.failure import RequestFailed
from backend_client.frontends.http_api.chat import ChatEndpoint
from backend_client.frontends.http_api.completions import CompletionEndpoint
from backend_client.frontends.http_api.generate_route import GenerateRoute, ServedBackend
from backend_client.frontends.http_api.refusal import Refusal, refusal_of
from enginewire import __version__, v1 as pb

HEALTH_TIMEOUT_SECONDS = 2.0


def make_app(served: ServedBackend) -> Starlette:
    """The ASGI application."""
    facts = Facts(served)
    return Starlette(
        routes=[
            Route("/v1/chat/completions", GenerateRoute(ChatEndpoint(), served), methods=["POST"]),
            Route("/v1/completions", GenerateRoute(CompletionEndpoint(), served), methods=["POST"]),
            Route("/v1/models", facts.models),
            Route("/v1/models/{name:path}", facts.model),
            Route("/health", facts.health),
            Route("/version", facts.version),
        ],
        exception_handlers={HTTPException: _no_such_route, RequestFailed: _failed},
    )


class Facts:
    """What can be asked without generating."""

    def __init__(self, served: ServedBackend) -> None:
        self._client = served.backend.backend.client

    async def models(self, request: Request) -> Response:
        """Every name the engine answers to. Raises RequestFailed."""
        return as_json({"object": "list", "data": await self._models()})

    async def model(self, request: Request) -> Response:
        """One of them. Raises RequestFailed."""
        name = request.path_params["name"]
        for model in await self._models():
            if model["id"] == name:
                return as_json(model)
        message = "no model of that name is served here"
        return refused(Refusal(HTTPStatus.NOT_FOUND, message, "model", "model_not_found"))

    async def health(self, request: Request) -> Response:
        """200 when the engine accepts requests, else 503."""
        try:
            state = (await self._client.load(timeout=HEALTH_TIMEOUT_SECONDS)).state
        except RequestFailed:
            state = pb.ENGINE_STATE_DEAD
        is_ready = state == pb.ENGINE_STATE_READY
        return Response(status_code=HTTPStatus.OK if is_ready else HTTPStatus.SERVICE_UNAVAILABLE)

    async def version(self, request: Request) -> Response:
        """The version of this program."""
        return as_json({"version": __version__})

    async def _models(self) -> Sequence[dict[str, object]]:
        info = await self._client.info(HEALTH_TIMEOUT_SECONDS)
        config = info.config
        names = dict.fromkeys([config.served_model_name or config.model, *config.aliases])
        length = config.context_length if config.HasField("context_length") else None
        return [
            {
                "id": name,
                "object": "model",
                # Nobody knows when the model was made; the SDK wants a number.
                "created": 0,
                "owned_by": info.engine_name,
                "root": config.model,
                "max_model_len": length,
            }
            for name in names
        ]


def as_json(value: object) -> Response:
    """A JSON answer."""
    return Response(orjson.dumps(value), media_type="application/json")


def refused(refusal: Refusal) -> Response:
    """An error answer."""
    return Response(refusal.body, refusal.status, headers=refusal.headers, media_type="application/json")


async def _no_such_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return refused(Refusal(error.status_code, error.detail))


async def _failed(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestFailed)
    return refused(refusal_of(error.failure, lambda field: None))
