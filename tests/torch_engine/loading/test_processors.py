"""Threads of one core count once, and products of ever new numbers of rows do not fill the memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from enginewire.torch_engine.loading.processors import VARIABLES, limit_kernel_caches, num_cores
from tests.long import long


def test_threads_of_one_core_count_once(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 2, 4})
    for number, siblings in enumerate(("0,2", "1,3", "0,2", "1,3")):
        folder = tmp_path / f"cpu{number}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(siblings)
    assert num_cores(tmp_path) == 3, "cores 0 and 1, and processor 4, of which the system tells nothing"


def test_a_system_that_tells_nothing_counts_processors(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 5})
    assert num_cores(tmp_path) == 3


GROWTH = """
import json
import torch
from psutil import Process
from enginewire.torch_engine.loading.processors import limit_kernel_caches
from enginewire.torch_engine.layers.linear import make_linear

torch.set_num_threads(1)
limit_kernel_caches()
product = make_linear(torch.ones(32, 32))
grown = []
with torch.inference_mode():
    for first in (1, 301):
        before = Process().memory_info().rss
        for rows in range(first, first + 300):
            product(torch.ones(rows, 32))
        grown.append((Process().memory_info().rss - before) / 2**20)
print(json.dumps(grown))
"""


def test_the_limits_of_the_environment_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLES[0], "7")
    monkeypatch.setenv(VARIABLES[1], "7")
    monkeypatch.delenv(VARIABLES[1])
    limit_kernel_caches()
    assert [os.environ[variable] for variable in VARIABLES] == ["7", "256"]


@long
def test_kernels_for_new_numbers_of_rows_replace_those_for_old_ones() -> None:
    environment = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    run = subprocess.run([sys.executable, "-c", GROWTH], env=environment, capture_output=True, check=True)
    _, more = json.loads(run.stdout)
    assert more < 80  # MiB; up to 53 were seen, and 140 where all of them are kept
