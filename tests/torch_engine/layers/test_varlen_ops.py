"""The one-call attention of CUDA, with a kernel of plain torch in its place; no GPU is needed or used."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable

import pytest
import torch

from enginewire.torch_engine.layers import varlen_ops as module
from enginewire.torch_engine.layers.varlen_ops import VarlenOps, find_kernel, try_kernel, varlen_ops
from enginewire.torch_engine.loading import kernel_choice
from tests.long import long_but
from tests.torch_engine.layers.varlen_emulation import varlen_attn
from tests.torch_engine.models.test_exactness import prompts
from tests.torch_engine.tiny import FAMILIES, CoreUnderTest, greedy

CPU = torch.device("cpu")
HEADS = (6, 2, 16)


@pytest.fixture
def load_varlen(load, monkeypatch) -> Callable[..., CoreUnderTest]:
    monkeypatch.setattr(kernel_choice, "varlen_ops", lambda *_: VarlenOps(varlen_attn))
    return load


def test_the_emulation_takes_what_torch_takes():
    kernel = find_kernel()
    assert kernel is not None
    known = inspect.signature(kernel).parameters
    for name, parameter in inspect.signature(varlen_attn).parameters.items():
        assert (known[name].kind, known[name].default) == (parameter.kind, parameter.default)


@pytest.mark.parametrize("family", long_but(["mistral", "qwen3"], FAMILIES))
def test_mixed_batches_and_late_arrivals_equal_transformers(family, load_varlen, expected):
    engine = load_varlen(family, max_num_batched_tokens=9, max_num_seqs=5, block_size=4)
    assert engine.core._runner.model.reading == "varlen"
    contexts = []
    for prompt in prompts():
        contexts.append(engine.add(greedy(prompt, 10)))
        engine.step()
    engine.run()
    for context, prompt in zip(contexts, prompts(), strict=True):
        assert engine.answers[context].tokens[0] == expected(family, prompt, 10)


@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_preempted_sequences_and_shared_prefixes_equal_transformers(family, load_varlen, expected):
    engine = load_varlen(family, num_kv_blocks=20, block_size=4, max_model_len=70)
    asked, scheduler = prompts((9, 17, 20, 14)), engine.core.scheduler
    for _ in range(2):  # the second time prompts are cached
        contexts = [engine.add(greedy(prompt, 12)) for prompt in asked]
        engine.step()
        if scheduler.window:
            engine.preempt_one()
        engine.run()
        for context, prompt in zip(contexts, asked, strict=True):
            assert engine.answers[context].tokens[0] == expected(family, prompt, 12)
    assert scheduler.num_preemptions > 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("block_size", [4, 256])
def test_a_sound_kernel_is_taken(dtype, block_size):
    assert try_kernel(varlen_attn, CPU, dtype, HEADS, block_size) is not None


def test_a_kernel_that_must_not_know_where_keys_end_is_taken():
    def picky(query, key, value, cu_seq_q, cu_seq_k, *rest, **options):
        if cu_seq_k is not None:
            raise RuntimeError("cu_seqlens_k is not for page tables")
        return varlen_attn(query, key, value, cu_seq_q, None, *rest, **options)

    assert try_kernel(picky, CPU, torch.bfloat16, HEADS, 16) is not None


def refusing(*_: object, **__: object) -> torch.Tensor:
    raise RuntimeError("page size must be divisible by 256\nat some place")


def blind(query: torch.Tensor, *_: object, **__: object) -> torch.Tensor:
    return torch.zeros_like(query)


def broken(query: torch.Tensor, *_: object, **__: object) -> torch.Tensor:
    return torch.full_like(query, float("nan"))


@pytest.mark.parametrize(
    ("kernel", "reason"),
    [(refusing, "divisible by 256"), (blind, "something else"), (broken, "something else")],
)
def test_a_kernel_that_fails_leaves_attention_to_torch_and_says_why_in_one_line(kernel, reason, caplog):
    with caplog.at_level(logging.WARNING):
        assert try_kernel(kernel, CPU, torch.bfloat16, HEADS, 16) is None
    (record,) = caplog.records
    message = record.getMessage()
    assert reason in message
    assert "needs blocks of 256 (--block-size)" in message
    assert "\n" not in message


def test_only_half_precision_on_cuda_has_the_kernel(monkeypatch):
    monkeypatch.setattr(module, "try_kernel", lambda *_: "tried")
    assert varlen_ops(CPU, torch.bfloat16, HEADS, 16) is None
    assert varlen_ops(torch.device("cuda"), torch.float32, HEADS, 16) is None
    assert varlen_ops(torch.device("cuda"), torch.bfloat16, HEADS, 16) == "tried"


def test_an_older_torch_without_block_tables_is_noticed(monkeypatch, caplog):
    from torch.nn.attention import varlen

    monkeypatch.setattr(varlen, "varlen_attn", lambda query, key, value: query)
    assert find_kernel() is None
    assert varlen_ops(torch.device("cuda"), torch.bfloat16, HEADS, 16) is None
    assert "torch 2.13" in caplog.text
