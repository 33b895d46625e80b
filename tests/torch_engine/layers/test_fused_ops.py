"""Small operations as Triton kernels: what they compute, in Triton's interpreter, and when they are taken."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
import torch

from enginewire.torch_engine.layers import kernels as room
from enginewire.torch_engine.layers.fused_ops import FusedOps, find_kernels, fused_ops
from enginewire.torch_engine.layers.ops import TorchOps
from enginewire.torch_engine.layers.rotary import rotate
from enginewire.torch_engine.layers.varlen_ops import VarlenOps
from tests.repository import ROOT
from tests.torch_engine.layers.varlen_emulation import varlen_attn

CPU = torch.device("cpu")
BASE = VarlenOps(varlen_attn)


class Kernels:
    """Plain torch behind the signatures of the kernels."""

    def rms_norm(self, value, weight, eps):
        return TorchOps().rms_norm(value, weight, eps)

    def gate(self, gate_up):
        return TorchOps().gate(gate_up)

    def rotate_and_write(self, heads, rotation, slots, keys, values):
        kv_heads = keys.shape[2]
        num_heads = heads.shape[1] - 2 * kv_heads
        turned = rotate(heads, *rotation)
        keys.flatten(0, 1).index_copy_(0, slots, turned[:, num_heads : num_heads + kv_heads])
        values.flatten(0, 1).index_copy_(0, slots, heads[:, num_heads + kv_heads :])
        return turned[:, :num_heads].contiguous()


def take(kernels):
    return fused_ops(BASE, CPU, torch.bfloat16, (6, 2, 16), 16, lambda: kernels)


@pytest.fixture
def cache(monkeypatch, tmp_path: Path) -> Iterator[Path]:
    """Where Triton is to keep what it compiles."""
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    yield tmp_path / "enginewire" / "triton"
    os.environ.pop("TRITON_CACHE_DIR", None)


def most_apart(dtype: str, name: str) -> float:
    """What rounding may do. Halves that are only turned and copied have to be the same."""
    if dtype == "float32":
        return 1e-5
    # Rounded twice: each time a number of 32 bits may lie on the other side of a half.
    return 2.01 if name in {"gate", "norm", "norm of heads"} else 0.0


def test_the_kernels_compute_what_plain_torch_computes():
    seed = Random().randrange(2**31)
    command = [sys.executable, "-m", "tests.torch_engine.layers.triton_numbers", str(seed)]
    said = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | {"TRITON_INTERPRET": "1"},
        check=True,
        text=True,
        stdout=subprocess.PIPE,
    ).stdout
    rows = [line.split("\t") for line in said.splitlines()]
    assert len(rows) == 22
    for dtype, name, difference in rows:
        assert float(difference) <= most_apart(dtype, name), (seed, dtype, name)


def test_sound_kernels_are_taken():
    assert isinstance(take(Kernels()), FusedOps)


class Refusing(Kernels):
    def gate(self, gate_up):
        raise RuntimeError("Failed to find C compiler\nset CC")


class WrongNorm(Kernels):
    def rms_norm(self, value, weight, eps):
        return super().rms_norm(value, weight, eps) * 1.1


class WrongGate(Kernels):
    def gate(self, gate_up):
        return torch.full_like(super().gate(gate_up), float("nan"))


class NotTurned(Kernels):
    def rotate_and_write(self, heads, rotation, slots, keys, values):
        straight = torch.ones_like(rotation[0]), torch.zeros_like(rotation[1])
        return super().rotate_and_write(heads, straight, slots, keys, values)


@pytest.mark.parametrize(
    ("kernels", "reason"),
    [
        (Refusing(), "Failed to find C compiler"),
        (WrongNorm(), "something else"),
        (WrongGate(), "something else"),
        (NotTurned(), "something else"),
    ],
)
def test_kernels_that_fail_leave_the_work_to_torch_and_one_line_says_why(kernels, reason, caplog):
    with caplog.at_level(logging.WARNING):
        assert take(kernels) is BASE
    (record,) = caplog.records
    assert reason in record.getMessage()
    assert "\n" not in record.getMessage()


def test_without_triton_plain_torch_does_the_work(cache, monkeypatch, caplog):
    # Another test of this process may have imported the kernels: a package remembers its modules too.
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.delitem(sys.modules, f"{room.__name__}.triton_ops", raising=False)
    monkeypatch.delattr(room, "triton_ops", raising=False)
    assert fused_ops(BASE, CPU, torch.bfloat16, (6, 2, 16), 16) is BASE
    assert "import of triton halted" in caplog.text


def test_what_triton_compiles_is_kept_where_nobody_else_may_write(cache):
    find_kernels()
    assert os.environ["TRITON_CACHE_DIR"] == str(cache)
    assert [path.stat().st_mode & 0o777 for path in (cache, cache.parent)] == [0o700, 0o700]


def test_a_folder_that_others_may_write_to_is_not_used(cache, caplog):
    cache.mkdir(parents=True)
    cache.parent.chmod(0o700)
    cache.chmod(0o770)
    assert fused_ops(BASE, CPU, torch.bfloat16, (6, 2, 16), 16) is BASE
    assert "XDG_CACHE_HOME says where" in caplog.text
    assert "TRITON_CACHE_DIR" not in os.environ


def test_a_folder_that_the_operator_has_chosen_is_used(cache, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", "/srv/kernels")
    find_kernels()
    assert os.environ["TRITON_CACHE_DIR"] == "/srv/kernels"
    assert not cache.exists()
