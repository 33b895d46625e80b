"""The import contracts hold, and a planted import breaks them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.repository import ROOT

PLACES = ("proto", "engine_server", "backend_client", "conformance")


COPY_ALONE = """
import sys
copy, *installed = sys.argv[1:]
sys.path[:] = [copy, *(path for path in sys.path if path not in installed)]
"""
LINT = """
from importlinter.cli import lint_imports_command
lint_imports_command(["--config", ".ci/importlinter.toml", "--no-cache"])
"""
# One reading of the copy sees all planted imports; each contract is then judged with its own alone.
LINT_ONE_BY_ONE = """
import copy, importlib, json
import grimp
from importlinter import api
read = api.read_configuration(".ci/importlinter.toml")
given = read["session_options"]
graph = grimp.build_graph(
    *given["root_packages"], include_external_packages=given["include_external_packages"], cache_dir=None
)
planted = json.load(sys.stdin)
broken = []
for options in read["contracts_options"]:
    name = options["name"]
    module = importlib.import_module(f"importlinter.contracts.{options['type']}")
    kind = getattr(module, options["type"].title().replace("_", "") + "Contract")
    contract = kind(name=name, session_options=given, contract_options=options)
    with_its_own = copy.deepcopy(graph)
    for begin, (importer, imported) in planted.items():
        if not name.startswith(begin):
            with_its_own.remove_import(importer=importer, imported=imported)
    if not contract.check(with_its_own, verbose=False).kept:
        broken.append(name)
print("broken:", json.dumps(broken))
"""


def lint(folder: Path, code: str = LINT, given: str = "") -> subprocess.CompletedProcess[str]:
    """Judge the copy, and nothing of the namespace that is installed beside it."""
    installed = [str(ROOT / place) for place in PLACES]
    return subprocess.run(
        [sys.executable, "-P", "-c", COPY_ALONE + code, str(folder), *installed],
        cwd=ROOT,
        input=given,
        capture_output=True,
        text=True,
        check=False,
    )


def copy_to(folder: Path) -> Path:
    ignored = shutil.ignore_patterns("__pycache__", "weights", "*.pyi")
    for place in PLACES:
        shutil.copytree(
            ROOT / place / "enginewire", folder / "enginewire", ignore=ignored, dirs_exist_ok=True
        )
    return folder


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return copy_to(tmp_path)


PLANTED = {
    "The three programs meet": ("conformance/judging", "import enginewire.backend.engines.failure"),
    "The torch engine belongs": (
        "backend/activity/totals",
        "import enginewire.torch_engine.options",
    ),
    "The vLLM engine belongs": (
        "backend/activity/totals",
        "import enginewire.vllm_engine.options",
    ),
    "The OpenAI engine belongs": (
        "backend/activity/totals",
        "import enginewire.openai_engine.options",
    ),
    "The contract knows none": ("v1/revision", "import enginewire.backend.activity.totals"),
    "The backend and the kit": ("backend/backend", "import torch"),
    "The kit needs nothing": ("conformance/wire/tasks", "import tokenizers"),
    "The shell never loads torch": ("server/admission/table", "import safetensors"),
    "The torch engine knows": ("torch_engine/engine", "import enginewire.server.status"),
    "Every import of vLLM": ("torch_engine/options", "import vllm"),
    "The vLLM engine knows": ("vllm_engine/engine", "import enginewire.server.status"),
    "The OpenAI engine knows": ("openai_engine/engine", "import enginewire.server.status"),
    "Decoding and parsing": ("backend/decoding/decoder", "import asyncio"),
    "Requests and scheduling": ("torch_engine/scheduling/scheduler", "import torch"),
    "Nobody knows each other": ("server/admission/queue/limits", "import enginewire.server.admission.table"),
    "The floors of the namespace": ("listening/sockets", "import enginewire.server.server"),
    "The floors of listening": ("listening/sockets", "import enginewire.listening.binding"),
    "The floors of calling": ("calling/trust", "import enginewire.calling.channel"),
    "The floors of access": ("access/roles", "import enginewire.access.access"),
    "The floors of TLS": ("tls/certificate", "import enginewire.tls.listener"),
    "The floors of the server": ("server/failures", "import enginewire.server.validation.fields"),
    "The floors of the engines": ("server/engines/interface", "import enginewire.server.engines.answer"),
    "The floors of its RPCs": ("server/services/handlers", "import enginewire.server.services.kv"),
    "The floors of the torch": ("torch_engine/layers/linear", "import enginewire.torch_engine.lora.config"),
    "The floors of the vLLM": ("vllm_engine/facts", "import enginewire.vllm_engine.core"),
    "The floors of the OpenAI": ("openai_engine/drawn", "import enginewire.openai_engine.call"),
    "The floors of grammars": ("torch_engine/guided/library", "import enginewire.torch_engine.guided.size"),
    "The floors of the backend": (
        "backend/engines/connection/client",
        "import enginewire.backend.decoding.window",
    ),
    "The floors of decoding": ("backend/decoding/window", "import enginewire.backend.decoding.decoder"),
    "The floors of parsing": ("backend/parsing/pieces", "import enginewire.backend.parsing.formats"),
    "The floors of the way": ("backend/engines/failure", "import enginewire.backend.engines.connection.rpc"),
    "The floors of the faces": ("backend/frontends/health", "import enginewire.backend.frontends.smg.facts"),
    "The floors of the Dynamo": (
        "backend/frontends/dynamo/fields",
        "import enginewire.backend.frontends.dynamo.answer",
    ),
    "Dynamo is imported": ("backend/frontends/dynamo/worker", "import dynamo"),
    "The floors of the HTTP": (
        "backend/frontends/http_api/body",
        "import enginewire.backend.frontends.http_api.app",
    ),
    "The floors of the kit": (
        "conformance/wire/tasks",
        "import enginewire.conformance.conclusion.baseline",
    ),
    "The floors of its checks": (
        "conformance/checks/streams/shapes",
        "import enginewire.conformance.checks.options.limits",
    ),
    "The floors of its mutants": (
        "conformance/mutants/mixes/mixed_endings",
        "import enginewire.conformance.mutants.scheduling.queueing",
    ),
    "The floors of its reference": (
        "conformance/reference/generation/job",
        "import enginewire.conformance.reference.service",
    ),
    "The floors of its reports": (
        "conformance/report/human",
        "import enginewire.conformance.report.formats.as_json",
    ),
    "The floors of its other": (
        "conformance/client_side/answer",
        "import enginewire.conformance.client_side.judge",
    ),
}


CONTRACTS = tomllib.loads((ROOT / ".ci/importlinter.toml").read_text())["tool"]["importlinter"]["contracts"]


def broken(done: subprocess.CompletedProcess[str]) -> list[str]:
    """The names of the contracts that do not hold."""
    assert done.returncode == 1, done.stdout + done.stderr
    ends = [line.partition(" BROKEN") for line in done.stdout.splitlines()]
    return [name for name, found, _ in ends if found]


def modules(file: str, planted: str) -> tuple[str, str]:
    """Who imports, and what."""
    return f"enginewire.{file.replace('/', '.')}", planted.removeprefix("import ")


@pytest.fixture(scope="module")
def broken_by_its_own(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The contracts that the import planted for them breaks, and no other could."""
    copy = copy_to(tmp_path_factory.mktemp("planted"))
    for file, planted in PLANTED.values():
        with (copy / "enginewire" / f"{file}.py").open("a") as source:
            source.write(f"\n\n{planted}\n")
    done = lint(copy, LINT_ONE_BY_ONE, json.dumps({name: modules(*each) for name, each in PLANTED.items()}))
    assert done.returncode == 0, done.stdout + done.stderr
    found: list[str] = json.loads(done.stdout.partition("broken:")[2])
    return found


@pytest.mark.parametrize("contract", PLANTED)
def test_a_planted_import_breaks_its_contract(broken_by_its_own: list[str], contract: str) -> None:
    assert contract in [name[: len(contract)] for name in broken_by_its_own]


def test_every_contract_has_a_planted_import() -> None:
    names = [contract["name"] for contract in CONTRACTS]
    assert [sum(name.startswith(begin) for begin in PLANTED) for name in names] == [1] * len(names)


def test_a_module_without_a_floor_breaks_the_floors_of_its_package(copy: Path) -> None:
    floors = [contract for contract in CONTRACTS if contract["type"] == "layers"]
    for contract in floors:
        [package] = contract["containers"]
        copy.joinpath(*package.split("."), "nowhere.py").write_text('"""A room without a floor."""\n')
    assert sorted(broken(lint(copy))) == sorted(contract["name"] for contract in floors)


def test_the_sources_keep_every_contract(copy: Path) -> None:
    done = lint(copy)
    assert done.returncode == 0, done.stdout + done.stderr
