"""One model in two processes of vLLM, each with a half of every layer."""

from __future__ import annotations

import os

import psutil
import pytest

from enginewire.server.demo_model import questions
from tests.vllm_engine.live.conftest import VLLM, Server, Start
from tests.vllm_engine.live.test_answers import PATIENCE_SECONDS, outputs, request, tokens_of
from tests.vllm_engine.live.test_lives import core_of


@pytest.fixture
def halves(start: Start, monkeypatch: pytest.MonkeyPatch) -> Server:
    """The demo model in two workers, which talk through gloo."""
    cores = sorted(os.sched_getaffinity(0))
    # By itself vLLM wants a NUMA node for each.
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", f"{cores[0]}|{cores[-1]}")
    server = start(*VLLM[:-1], "--engine-args=--enforce-eager --tensor-parallel-size 2")
    server.wait_ready()
    return server


def workers_of(server: Server) -> list[psutil.Process]:
    return [each for each in core_of(server).children() if "Worker" in " ".join(each.cmdline())]


def test_two_workers_answer_as_one_and_the_death_of_one_is_the_end(halves, vllm):
    asked = [request(question) for question in list(questions())[::60]]
    assert [tokens_of(outputs(halves, each)) for each in asked] == [
        tokens_of(outputs(vllm, each)) for each in asked
    ]
    family, workers = halves.family(), workers_of(halves)
    assert len(workers) == 2
    workers[1].kill()
    assert halves.process.wait(PATIENCE_SECONDS) == 70, halves.log()
    _, alive = psutil.wait_procs(family, timeout=PATIENCE_SECONDS)
    assert alive == []
