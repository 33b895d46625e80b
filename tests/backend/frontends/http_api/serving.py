"""The HTTP face on a real socket in this process, and the OpenAI SDK that speaks to it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx2
from openai import AsyncOpenAI

from enginewire.access.listener_options import access_of
from enginewire.backend.config import ServeOptions
from enginewire.backend.frontends.http_api.server import HttpFace, http_face
from enginewire.backend.frontends.text_backend import TextBackend
from tests.patience import PATIENCE_SECONDS


@asynccontextmanager
async def serving_http(backend: TextBackend, **given: object) -> AsyncIterator[HttpFace]:
    """A listening face."""
    options = ServeOptions(http_port=0, **given)
    async with http_face(backend, options, access_of(options)) as face:
        yield face


@asynccontextmanager
async def sdk(backend: TextBackend, **given: object) -> AsyncIterator[AsyncOpenAI]:
    """The SDK, which does not hide failures by trying again."""
    async with (
        serving_http(backend, **given) as face,
        AsyncOpenAI(
            base_url=f"{face.address}/v1", api_key="none", max_retries=0, timeout=PATIENCE_SECONDS
        ) as client,
    ):
        yield client


@asynccontextmanager
async def client_of(backend: TextBackend, **given: object) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of plain HTTP, for what the SDK hides."""
    async with (
        serving_http(backend, **given) as face,
        httpx2.AsyncClient(base_url=face.address, timeout=PATIENCE_SECONDS) as client,
    ):
        yield client
