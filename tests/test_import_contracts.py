"""The import contracts hold, and a planted import breaks them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.repository import ROOT

PLACES = ("proto", "engine_server", "backend_client", "conformance")


LINT = """
import sys
from importlinter.cli import lint_imports_command
copy, *installed = sys.argv[1:]
sys.path[:] = [copy, *(path for path in sys.path if path not in installed)]
lint_imports_command(["--config", ".ci/importlinter.toml", "--no-cache"])
"""


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    """Judge the copy, and nothing of the namespace that is installed beside it."""
    installed = [str(ROOT / place) for place in PLACES]
    return subprocess.run(
        [sys.executable, "-P", "-c", LINT, str(folder), *installed],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    ignored = shutil.ignore_patterns("__pycache__", "weights", "*.pyi")
    for place in PLACES:
        shutil.copytree(
            ROOT / place / "enginewire", tmp_path / "enginewire", ignore=ignored, dirs_exist_ok=True
        )
    return tmp_path


@pytest.mark.parametrize(
    ("file", "planted"),
    [
        ("enginewire/conformance/__main__.py", "import enginewire.server.services.engine"),
        ("enginewire/backend/decoding/decoder.py", "import asyncio"),
        ("enginewire/backend/backend.py", "import torch"),
        ("enginewire/torch_engine/engine.py", "import grpc"),
        ("enginewire/torch_engine/scheduling/scheduler.py", "import torch"),
        ("enginewire/server/admission/table.py", "import torch"),
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
