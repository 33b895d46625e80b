"""The routes of the HTTP face: those that generate, embed and tokenize, facts, health, and the page.

Knows nothing about sockets.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from enginewire import v1 as pb
from enginewire.access.access import OPEN, Access
from enginewire.access.roles import Role
from enginewire.backend.engines.connection.client import EngineClient
from enginewire.backend.engines.failure import RequestFailed
from enginewire.backend.frontends.http_api.body import InvalidBody
from enginewire.backend.frontends.http_api.calls.incoming import CallerLeft
from enginewire.backend.frontends.http_api.embeddings.route import EmbeddingsRoute
from enginewire.backend.frontends.http_api.json_response import as_json, refused
from enginewire.backend.frontends.http_api.messages.route import CountTokensRoute, MessagesRoute
from enginewire.backend.frontends.http_api.metrics import BackendMetrics
from enginewire.backend.frontends.http_api.middleware.role_guard import guarded
from enginewire.backend.frontends.http_api.no_such_route import no_such_route
from enginewire.backend.frontends.http_api.openai.chat import ChatEndpoint
from enginewire.backend.frontends.http_api.openai.completions import CompletionEndpoint
from enginewire.backend.frontends.http_api.openai.generate_route import GenerateRoute, ServedBackend
from enginewire.backend.frontends.http_api.page.page import page_routes
from enginewire.backend.frontends.http_api.refusal import (
    CLIENT_CLOSED_REQUEST,
    Refused,
    invalid,
    no_such_model,
    refusal_of,
)
from enginewire.backend.frontends.http_api.responses.route import ResponsesRoute
from enginewire.backend.frontends.http_api.vllm.adapters import LoadAdapterRoute, UnloadAdapterRoute
from enginewire.backend.frontends.http_api.vllm.tokenization import DetokenizeRoute, TokenizeRoute
from enginewire.version import __version__

HEALTH_TIMEOUT_SECONDS = 2.0
# An engine that is away shall not keep the scraper waiting.
METRICS_TIMEOUT_SECONDS = 0.5

ROLE_OF_ROUTE: Final[Mapping[str, Role | None]] = {
    "/v1/chat/completions": Role.INFER,
    "/v1/completions": Role.INFER,
    "/v1/responses": Role.INFER,
    "/v1/messages": Role.INFER,
    "/v1/messages/count_tokens": Role.INFER,
    "/v1/embeddings": Role.INFER,
    "/v1/load_lora_adapter": Role.ADMIN,
    "/v1/unload_lora_adapter": Role.ADMIN,
    "/tokenize": Role.INFER,
    "/detokenize": Role.INFER,
    "/v1/models": Role.READ,
    "/v1/models/{name:path}": Role.READ,
    "/metrics": Role.READ,
    # Load balancers and probes bring no key, and learn next to nothing.
    "/health": None,
    "/version": None,
    # The page is the same for everybody; what it shows comes from the routes below.
    "/": None,
    "/page/{name:path}": None,
    "/enginewire/about": Role.READ,
    "/enginewire/status": Role.READ,
    "/enginewire/events": Role.READ,
    "/enginewire/abort": Role.INFER,
    "/enginewire/generate": Role.INFER,
}
"""What a caller needs; None is open to all who reach the server."""


def make_app(served: ServedBackend, middleware: Sequence[Middleware], access: Access = OPEN) -> Starlette:
    """The ASGI application; every request passes `middleware` first, then what `access` asks of its route."""
    facts = Facts(served, access)
    return Starlette(
        routes=guarded(
            [
                Route(
                    "/v1/chat/completions",
                    GenerateRoute(ChatEndpoint(served.formats), served),
                    methods=["POST"],
                ),
                Route("/v1/completions", GenerateRoute(CompletionEndpoint(), served), methods=["POST"]),
                Route("/v1/responses", ResponsesRoute(served), methods=["POST"]),
                Route("/v1/messages", MessagesRoute(served), methods=["POST"]),
                Route("/v1/messages/count_tokens", CountTokensRoute(served), methods=["POST"]),
                Route("/v1/embeddings", EmbeddingsRoute(served), methods=["POST"]),
                Route("/v1/load_lora_adapter", LoadAdapterRoute(served), methods=["POST"]),
                Route("/v1/unload_lora_adapter", UnloadAdapterRoute(served), methods=["POST"]),
                Route("/tokenize", TokenizeRoute(served), methods=["POST"]),
                Route("/detokenize", DetokenizeRoute(served), methods=["POST"]),
                Route("/v1/models", facts.models),
                Route("/v1/models/{name:path}", facts.model),
                Route("/health", facts.health),
                Route("/version", facts.version),
                Route("/metrics", facts.metrics),
                *page_routes(served),
            ],
            ROLE_OF_ROUTE,
            access,
            served.backend.backend.activity.audit,
        ),
        middleware=middleware,
        exception_handlers={
            HTTPException: no_such_route,
            RequestFailed: _failed,
            Refused: _refused,
            InvalidBody: _malformed,
            CallerLeft: _left,
        },
    )


class Facts:
    """What can be asked without generating."""

    def __init__(self, served: ServedBackend, access: Access) -> None:
        self._served = served
        backend, certificate = served.backend.backend, access.tls.files if access.tls else None
        self._metrics = BackendMetrics(
            backend.activity, backend.engines.all, backend.retry_budget, certificate, access.refused
        )

    async def models(self, request: Request) -> Response:
        """Every name the engine answers to, those of adapters last. Raises RequestFailed."""
        return as_json({"object": "list", "data": await self._models()})

    async def model(self, request: Request) -> Response:
        """One of them. Raises RequestFailed."""
        name = request.path_params["name"]
        for model in await self._models():
            if model["id"] == name:
                return as_json(model)
        return refused(no_such_model())

    async def health(self, request: Request) -> Response:
        """200 when an engine accepts requests, else 503."""
        engines = self._served.backend.backend.engines.all
        states = await asyncio.gather(*(state_of(engine.client) for engine in engines))
        is_ready = pb.ENGINE_STATE_READY in states
        return Response(status_code=HTTPStatus.OK if is_ready else HTTPStatus.SERVICE_UNAVAILABLE)

    async def metrics(self, request: Request) -> Response:
        """For Prometheus."""
        with contextlib.suppress(RequestFailed):
            self._metrics.model_name = await self._served.model_name(METRICS_TIMEOUT_SECONDS)
        page, content_type = self._metrics.page(request.headers.get("accept", ""))
        return Response(page, headers={"content-type": content_type})

    async def version(self, request: Request) -> Response:
        """The version of this program."""
        return as_json({"version": __version__})

    async def _models(self) -> Sequence[dict[str, object]]:
        engines = self._served.backend.backend.engines
        info = await engines.info(HEALTH_TIMEOUT_SECONDS)
        config = info.config
        names = await self._served.all_names(HEALTH_TIMEOUT_SECONDS)
        parents: dict[str, str | None] = dict.fromkeys(names)
        parents |= {each.name: names[0] for each in await engines.adapters(HEALTH_TIMEOUT_SECONDS)}
        length = config.context_length if config.HasField("context_length") else None
        return [
            {
                "id": name,
                "object": "model",
                # Nobody knows when the model was made; the SDK wants a number.
                "created": 0,
                "owned_by": info.engine_name,
                "root": config.model,
                # Of an adapter: the model that it changes.
                "parent": parent,
                "max_model_len": length,
            }
            for name, parent in parents.items()
        ]


async def state_of(client: EngineClient) -> pb.EngineState.ValueType:
    """The engine's own word, asked now."""
    try:
        return (await client.load(timeout=HEALTH_TIMEOUT_SECONDS)).state
    except RequestFailed:
        return pb.ENGINE_STATE_DEAD


async def _failed(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestFailed)
    return refused(refusal_of(error.failure, lambda field: None))


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    return refused(error.refusal)


async def _malformed(request: Request, error: Exception) -> Response:
    assert isinstance(error, InvalidBody)
    return refused(invalid(str(error), error.field or None))


async def _left(request: Request, error: Exception) -> Response:
    return Response(status_code=CLIENT_CLOSED_REQUEST)
