"""The page at `/` and the routes it uses: state once or as a stream of events, and abort.

Knows nothing about what the page looks like.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import Final

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Mount, Route

from enginewire import v1 as pb
from enginewire.backend.frontends.http_api.body import Body, InvalidBody, checked
from enginewire.backend.frontends.http_api.calls.incoming import read_body
from enginewire.backend.frontends.http_api.calls.reply import EVENT_TYPE
from enginewire.backend.frontends.http_api.json_response import as_json, refused
from enginewire.backend.frontends.http_api.openai.answer import event
from enginewire.backend.frontends.http_api.openai.generate_route import GenerateRoute, ServedBackend
from enginewire.backend.frontends.http_api.page.engine_loads import EngineLoads
from enginewire.backend.frontends.http_api.page.files import Files
from enginewire.backend.frontends.http_api.page.snapshot import snapshot
from enginewire.backend.frontends.http_api.page.token_rows import TokenEndpoint
from enginewire.backend.frontends.http_api.refusal import Refusal
from enginewire.version import __version__

# Smooth enough for the eye, and next to nothing for the server.
EVENT_SECONDS: Final = 0.2
INFO_TIMEOUT_SECONDS: Final = 2.0
MAX_ID_CHARACTERS: Final = 512


def page_routes(served: ServedBackend) -> list[Route | Mount]:
    """Everything that is for a browser."""
    files, page = Files(), Page(served)
    return [
        Route("/", files.index),
        Route("/page/{name:path}", files.file),
        Mount(
            "/enginewire",
            routes=[
                Route("/about", page.about),
                Route("/status", page.status),
                Route("/events", page.events),
                Route("/abort", page.abort, methods=["POST"]),
                Route("/generate", GenerateRoute(TokenEndpoint(served.formats), served), methods=["POST"]),
            ],
        ),
    ]


class Page:
    """What the page asks for."""

    def __init__(self, served: ServedBackend) -> None:
        self._served = served
        self._backend = served.backend.backend
        self._loads = EngineLoads(self._backend)

    async def about(self, request: Request) -> Response:
        """What does not change while the engine lives. Raises RequestFailed."""
        info = await self._backend.engines.info(INFO_TIMEOUT_SECONDS)
        config = info.config
        limits = config.limits
        most = limits.max_logprobs if limits.HasField("max_logprobs") else 0
        can = config.capabilities
        return as_json(
            {
                "version": __version__,
                "model": await self._served.model_name(INFO_TIMEOUT_SECONDS),
                "engine": f"{info.engine_name} {info.engine_version}".strip(),
                "context_length": config.context_length,
                "kv_block_size": config.kv_cache_block_size,
                "max_num_seqs": config.max_num_seqs,
                "max_logprobs": most if can.logprobs else None,
                "can": {
                    "seed": can.seed,
                    "n": can.multiple_choices,
                    "json_schema": pb.GUIDED_MODE_JSON_SCHEMA in can.guided_modes,
                },
                "has_chat_template": self._served.backend.tokenizer.chat_template is not None,
            }
        )

    async def status(self, request: Request) -> Response:
        """The state now."""
        return as_json(snapshot(self._backend, await self._loads.look()))

    async def events(self, request: Request) -> Response:
        """The state now and five times a second, until this server ends."""
        headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
        return StreamingResponse(self._snapshots(), media_type=EVENT_TYPE, headers=headers)

    async def abort(self, request: Request) -> Response:
        """End a request by id, whichever face it came through. Raises Refused and InvalidBody."""
        body = Body.parse(await read_body(request.scope, request.receive))
        request_id = checked("request_id", body.get("request_id"), str)
        if not 0 < len(request_id) <= MAX_ID_CHARACTERS:
            raise InvalidBody("request_id", f"must have 1 to {MAX_ID_CHARACTERS} characters")
        aborted = self._backend.activity.abort(request_id, "aborted over HTTP")
        if not aborted:
            message = "no live request has that id"
            return refused(Refusal(HTTPStatus.NOT_FOUND, message, "request_id", "request_not_found"))
        return as_json({"aborted": aborted})

    async def _snapshots(self) -> AsyncIterator[bytes]:
        closing = self._served.closing
        while not closing.is_set():
            yield event(snapshot(self._backend, await self._loads.look()))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(EVENT_SECONDS):
                    await closing.wait()
