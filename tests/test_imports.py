"""What importing a package really loads, in a fresh interpreter.

import-linter reads the source; this also catches what comes in through a dependency.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = {"torch", "transformers", "safetensors", "numpy"}


def loaded_by(statement: str) -> set[str]:
    code = f"{statement}\nimport sys; print(' '.join({{name.split('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("statement", "forbidden"),
    [
        ("import enginewire.v1", HEAVY | {"tokenizers", "jinja2", "engine_server", "backend_client"}),
        ("import backend_client, backend_client.backend, backend_client.__main__", HEAVY | {"engine_server"}),
        (
            "import conformance, conformance.__main__",
            HEAVY | {"tokenizers", "engine_server", "backend_client"},
        ),
        (
            "from engine_server import engines, logs, mocker_engine, server",
            HEAVY | {"rich"},
        ),
        ("import engine_server.torch_engine.engine", {"torch", "transformers", "backend_client"}),
    ],
)
def test_importing_a_package_loads_nothing_it_must_not(statement: str, forbidden: set[str]) -> None:
    assert not loaded_by(statement) & forbidden


def test_the_check_sees_a_planted_import() -> None:
    assert "torch" in loaded_by("import torch")
