"""Engines that follow grammars, one for each library and module."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from enginewire.torch_engine.engine import TorchEngine
from tests.torch_engine.guided.engines import BACKENDS, guided_folder, serving


@pytest.fixture(scope="module")
def folder(model_folder: Callable[[str], Path]) -> Path:
    """A model whose tokens are known as text."""
    return guided_folder(model_folder)


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=BACKENDS)
async def engine(folder: Path, request: pytest.FixtureRequest) -> AsyncIterator[TorchEngine]:
    """With each of the grammar libraries."""
    async with serving(folder, request.param) as made:
        yield made
