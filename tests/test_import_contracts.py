"""The import contracts hold, and a planted import breaks them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = {
    "enginewire": ROOT / "proto/enginewire",
    "engine_server": ROOT / "engine_server",
    "backend_client": ROOT / "backend_client",
    "conformance": ROOT / "conformance",
}


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            Path(sys.executable).parent / "lint-imports",
            "--config",
            ROOT / ".ci/importlinter.toml",
            "--no-cache",
        ],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for name, source in PACKAGES.items():
        shutil.copytree(
            source, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "weights", "*.pyi")
        )
    return tmp_path


@pytest.mark.parametrize(
    ("file", "planted"),
    [
        ("conformance/__main__.py", "import engine_server.servicer"),
        ("backend_client/decoder.py", "import asyncio"),
        ("backend_client/backend.py", "import torch"),
        ("engine_server/torch_engine/engine.py", "import grpc"),
        ("engine_server/torch_engine/scheduler.py", "import torch"),
        ("engine_server/admission.py", "import torch"),
    ],
)
def test_a_planted_import_breaks_a_contract(copy: Path, file: str, planted: str) -> None:
    path = copy / file
    path.write_text(f"{path.read_text()}\n\n{planted}\n")
    done = lint(copy)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 broken" in done.stdout


def test_the_sources_keep_every_contract(copy: Path) -> None:
    done = lint(copy)
    assert done.returncode == 0, done.stdout + done.stderr
