"""What importing a package really loads, in a fresh interpreter.

import-linter reads the source; this also catches what comes in through a dependency.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

SERVER, BACKEND = "enginewire.server", "enginewire.backend"
HEAVY = {"torch", "transformers", "safetensors", "numpy", "opentelemetry"}


def loaded_by(statement: str) -> set[str]:
    names = "{'.'.join(name.split('.')[:depth]) for name in sys.modules for depth in (1, 2)}"
    code = f"{statement}\nimport sys; print(' '.join({names}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("statement", "forbidden"),
    [
        ("import enginewire.v1", HEAVY | {"tokenizers", "jinja2", SERVER, BACKEND}),
        (
            "import enginewire.backend.backend, enginewire.backend.__main__",
            HEAVY | {SERVER},
        ),
        (
            "import enginewire.conformance, enginewire.conformance.__main__",
            HEAVY | {"tokenizers", SERVER, BACKEND},
        ),
        (
            "import enginewire.server.engines.mocker.engine, enginewire.server.load_engine;"
            "import enginewire.server.server",
            HEAVY | {"rich"},
        ),
        ("import enginewire.torch_engine.engine", {"torch", "transformers", BACKEND}),
        ("import enginewire.openai_engine.engine", HEAVY | {"tokenizers", BACKEND}),
        ("import enginewire.vllm_engine.engine", HEAVY | {"vllm", "tokenizers", BACKEND}),
    ],
)
def test_importing_a_package_loads_nothing_it_must_not(statement: str, forbidden: set[str]) -> None:
    assert not loaded_by(statement) & forbidden


@pytest.mark.parametrize("program", ["enginewire.backend.__main__", "enginewire.server.__main__"])
def test_until_a_program_listens_for_ctrl_c_it_imports_next_to_nothing(program: str) -> None:
    assert not loaded_by(f"import {program}") & {"asyncio", "logging", "dataclasses", "enginewire.options"}


def test_the_check_sees_a_planted_import() -> None:
    assert "numpy" in loaded_by("import numpy") & HEAVY
