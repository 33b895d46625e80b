"""What `make gpu-check` says, with stand-ins for the kernel and the graphs of a GPU."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

import pytest
import torch

from enginewire.torch_engine.layers.varlen_ops import VarlenOps
from enginewire.torch_engine.loading import graphs as recorded_graphs, kernel_choice
from tests.repository import ROOT
from tests.torch_engine.layers.varlen_emulation import varlen_attn
from tests.torch_engine.runner.test_decode_graphs import FakeRecorder


@pytest.fixture
def gpu_check(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_check", ROOT / "benchmarks/model/gpu_check.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "gpu_check", module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "NUM_PROMPTS", 2)
    monkeypatch.setattr(module, "NUM_TOKENS", 6)
    monkeypatch.setattr(kernel_choice, "varlen_ops", lambda *_: VarlenOps(varlen_attn))
    return module


class WrongRecorder(FakeRecorder):
    """Its graphs forget what they were given."""

    def __call__(self, compute):
        replay = super().__call__(compute)
        return lambda: replay().roll(1, dims=-1)


def test_a_sound_device_is_right_in_everything(gpu_check: ModuleType, monkeypatch: pytest.MonkeyPatch):
    recorder = FakeRecorder()
    monkeypatch.setattr(recorded_graphs, "graph_recorder", lambda device: recorder)
    found = gpu_check.check("cpu")
    assert {name: verdict.is_right for name, verdict in found.items()} == dict.fromkeys(found, True)
    assert list(found) == ["parity", "half", "graphs", "overlap", "crowd"]
    assert recorder.replayed


def test_graphs_that_compute_something_else_are_found(gpu_check: ModuleType, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(recorded_graphs, "graph_recorder", lambda device: WrongRecorder())
    found = gpu_check.check("cpu")
    wrong = {name for name, verdict in found.items() if not verdict.is_right}
    # Which steps have prompts, and so no graph, is chance: other answers may differ too.
    assert "graphs" in wrong


def test_without_graphs_nothing_is_recorded(gpu_check: ModuleType, monkeypatch: pytest.MonkeyPatch):
    recorder = FakeRecorder()
    monkeypatch.setattr(recorded_graphs, "graph_recorder", lambda device: recorder)
    gpu_check.answers("cpu", "bfloat16", enforce_eager=True)
    assert not recorder.replayed


def test_without_a_gpu_it_says_so(gpu_check: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("sys.argv", ["gpu_check.py"])
    assert gpu_check.main() == 2
    assert "no CUDA device" in capsys.readouterr().err
