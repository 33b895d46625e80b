"""One server for those tests of a module that leave nothing behind: a start takes longer than a request."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest_asyncio
from openai import AsyncOpenAI

from enginewire.backend.frontends.text_backend import TextBackend
from tests.backend.frontends.conftest import backends
from tests.backend.frontends.http_api.openai.echoing import HERMES, LAST_MESSAGE, with_template
from tests.backend.frontends.http_api.serving import client_of, sdk
from tests.server.conftest import engine_servers


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_backend() -> AsyncIterator[TextBackend]:
    """A backend on a mocker that answers at once."""
    with tempfile.TemporaryDirectory(prefix="ew-") as folder:
        async with engine_servers(Path(folder)) as engine_server, backends(engine_server) as start:
            yield (await start())[0]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_sdk(shared_backend: TextBackend) -> AsyncIterator[AsyncOpenAI]:
    async with sdk(shared_backend) as client:
        yield client


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_sdk_of_hermes(shared_backend: TextBackend) -> AsyncIterator[AsyncOpenAI]:
    """Of a model whose template shows tools and their calls."""
    async with sdk(with_template(shared_backend, HERMES + LAST_MESSAGE)) as client:
        yield client


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_client(shared_backend: TextBackend) -> AsyncIterator[httpx2.AsyncClient]:
    """Of plain HTTP."""
    async with client_of(shared_backend) as client:
        yield client
