"""What the death of vLLM's process does to its server. How servers end beside others: test_replay.py."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import grpc
import psutil
import pytest

from enginewire import v1 as pb
from tests.backend.our_processes import load_of, until
from tests.vllm_engine.live.conftest import VLLM, Server, Start
from tests.vllm_engine.live.test_answers import PATIENCE_SECONDS, outputs, request

CROWD = 16
"""Four times as many as run at the same time."""


def long_request() -> pb.PreprocessedRequest:
    made = request("Hello")
    made.stop_conditions.ignore_eos = True
    made.stop_conditions.max_tokens = 900
    return made


class Asked:
    """A long request under way on a thread of its own, and what came of it."""

    def __init__(self, server: Server) -> None:
        self.failure: grpc.RpcError | None = None
        self._thread = threading.Thread(target=self._run, args=(server,), daemon=True)
        self._thread.start()

    def _run(self, server: Server) -> None:
        try:
            outputs(server, long_request())
        except grpc.RpcError as failure:
            self.failure = failure

    def wait(self) -> None:
        self._thread.join(PATIENCE_SECONDS)
        assert not self._thread.is_alive()


def core_of(server: Server) -> psutil.Process:
    """The process of vLLM's EngineCore: the one that has the workers below it, or the biggest."""
    family = server.family()[1:]
    parents = [each for each in family if each.children()]
    return max(parents or family, key=lambda each: each.memory_info().rss)


def test_the_death_of_vllm_fails_what_runs_and_ends_the_server(start: Start) -> None:
    server = start(*VLLM)
    server.wait_ready()
    core, family = core_of(server), server.family()
    # On a busy machine one alone may have ended before the signal comes.
    all_asked = [Asked(server) for _ in range(CROWD)]
    until(lambda: load_of(server.target).running > 0, PATIENCE_SECONDS)
    core.kill()
    for asked in all_asked:
        asked.wait()
    failures = [asked.failure for asked in all_asked if asked.failure is not None]
    assert {failure.code() for failure in failures} == {grpc.StatusCode.UNAVAILABLE}
    assert server.process.wait(PATIENCE_SECONDS) == 70, server.log()
    _, alive = psutil.wait_procs(family, timeout=PATIENCE_SECONDS)
    assert alive == []


def test_a_vllm_that_takes_itself_for_a_build_for_gpus_is_told_of(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As beside a package `vllm`, which `ray[llm]` brings. vLLM itself speaks of an empty device string."""
    facts = tmp_path / "vllm-0.32.0.dist-info" / "METADATA"
    facts.parent.mkdir()
    facts.write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    server = start(*VLLM)
    assert server.process.wait(PATIENCE_SECONDS) == 1, server.log()
    assert "vLLM finds nothing to compute on" in server.log()


def test_seeded_prompts_that_do_not_fit_one_step_together_are_all_answered(start: Start) -> None:
    """vLLM for CPUs dies where it splits one of them."""
    server = start(*VLLM, "--max-num-batched-tokens", "1024")
    server.wait_ready()
    all_asked = [request("Hello", temperature=1.0, seed=1) for _ in range(CROWD)]
    for number, asked in enumerate(all_asked):
        asked.token_ids[:] = [100 + number] * 700  # none of which is cached
    with ThreadPoolExecutor(CROWD) as pool:
        answers = list(pool.map(partial(outputs, server), all_asked))
    assert all(answer[-1].finish_reason for answer in answers)
    assert server.process.poll() is None


def test_a_seed_is_refused_where_vllm_has_to_split_prompts(start: Start) -> None:
    server = start(*VLLM, "--max-num-batched-tokens", "512")
    server.wait_ready()
    with pytest.raises(grpc.RpcError) as caught:
        outputs(server, request("Hello", temperature=1.0, seed=1))
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    asked = request("Hello", temperature=1.0)
    asked.token_ids[:] = [100] * 700
    assert outputs(server, asked)[-1].finish_reason
