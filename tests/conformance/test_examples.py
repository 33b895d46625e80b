"""What examples/ci shows really works."""

from __future__ import annotations

import importlib.util
import shlex
from pathlib import Path

import yaml

from enginewire.conformance import options
from tests.long import long
from tests.repository import ROOT

EXAMPLES = ROOT / "examples" / "ci"


@long
async def test_the_example_of_a_test_passes() -> None:
    spec = importlib.util.spec_from_file_location("example", EXAMPLES / "test_conformance.py")
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    await example.test_my_engine_keeps_the_contract()


def test_the_workflow_uses_the_action_and_options_that_exist(tmp_path: Path) -> None:
    workflow = yaml.safe_load((EXAMPLES / "conformance.yml").read_text())
    (step,) = [
        step for step in workflow["jobs"]["enginewire"]["steps"] if "enginewire" in step.get("uses", "")
    ]
    path = step["uses"].partition("@")[0].split("/", 2)[2]
    action = yaml.safe_load((ROOT / path / "action.yml").read_text())
    assert step["with"].keys() <= action["inputs"].keys()
    known = tmp_path / "conformance-baseline.yaml"
    known.touch()
    words = shlex.split(step["with"]["options"])
    given = [str(known) if word == known.name else word for word in words]
    assert options.parse(["--launch", step["with"]["launch"], *given]).launch == "./my-server --port {port}"
