"""A model that takes pictures, behind our server."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.repository import ROOT
from tests.vllm_engine.live.conftest import VLLM, Server, starting

MOST = 2
"""Pictures in a prompt."""
LIMITED = f"--engine-args=--enforce-eager --limit-mm-per-prompt.image {MOST}"
MAKING = f"{ROOT}/.ci/make/vision_model.py"


@pytest.fixture(scope="package")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with random weights that takes pictures."""
    made = tmp_path_factory.mktemp("vision")
    subprocess.run([sys.executable, MAKING, str(made)], check=True)
    return made


@pytest.fixture(scope="package")
def seeing(folder: Path) -> Iterator[Server]:
    """It, behind our server."""
    with starting() as begin:
        server = begin(*VLLM[:-1], str(folder), LIMITED)
        server.wait_ready()
        yield server
