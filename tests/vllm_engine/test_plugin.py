"""What vLLM's processes do for the server that they belong to, in processes without vLLM."""

from __future__ import annotations

import os
import subprocess
import sys

import psutil

from enginewire.vllm_engine.environment import SERVER
from tests.backend.our_processes import until

STAND_IN = """
import sys, types
for name in ("vllm", "vllm.v1", "vllm.v1.structured_output"):
    sys.modules[name] = types.ModuleType(name)
sys.modules[name].StructuredOutputManager = type("StructuredOutputManager", (), {"grammar_init": None})
"""
"""All that is changed of vLLM."""
CHILD = STAND_IN + (
    "from enginewire.vllm_engine.plugin import attend; attend(); import os; print(os.getpgid(0), flush=True)"
)
WAIT = "; import time; time.sleep(600)"
PARENT = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {CHILD + WAIT!r}], stdout=subprocess.PIPE, text=True)
child.stdout.readline()
print(child.pid, flush=True)
child.wait()
"""


def group_of(environment: dict[str, str]) -> tuple[int, int]:
    """The process group of a child that has called `attend`, and its process id."""
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD], env=environment, stdout=subprocess.PIPE, text=True
    )
    said, _ = child.communicate()
    return int(said), child.pid


def test_a_process_of_the_server_leaves_its_group() -> None:
    group, child = group_of({**os.environ, SERVER: str(os.getpid())})
    assert group == child


def test_a_process_of_somebody_else_stays_as_it_is() -> None:
    environment = {name: value for name, value in os.environ.items() if name != SERVER}
    assert group_of(environment)[0] == os.getpgid(0)


def test_it_ends_with_its_parent() -> None:
    environment = {**os.environ, SERVER: "1"}
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT], env=environment, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    parent.kill()
    parent.communicate()
    until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)
