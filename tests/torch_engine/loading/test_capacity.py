"""What an engine takes where the options leave it open."""

from __future__ import annotations

import pytest
import torch

from enginewire.torch_engine.folder.folder import ModelLoadError
from enginewire.torch_engine.loading import load as loading
from enginewire.torch_engine.loading.capacity import choose_block_size, choose_kv_dtype
from enginewire.torch_engine.options import TorchEngineOptions


@pytest.mark.parametrize(
    ("asked", "device", "dtype", "size"),
    [
        (None, "cpu", torch.bfloat16, 16),
        (None, "cuda", torch.bfloat16, 256),
        (None, "cuda", torch.float16, 256),
        (None, "cuda", torch.float32, 16),
        (32, "cuda", torch.bfloat16, 32),
        (32, "cpu", torch.float32, 32),
    ],
)
def test_a_block_is_as_large_as_the_kernel_of_the_device_wants(asked, device, dtype, size):
    assert choose_block_size(TorchEngineOptions(block_size=asked), torch.device(device), dtype) == size


def test_a_gpu_caches_what_its_kernel_reads_and_says_so():
    options = TorchEngineOptions(kv_cache_dtype="bfloat16")
    assert choose_kv_dtype(options, torch.device("cuda"), torch.bfloat16) == torch.bfloat16
    with pytest.raises(ModelLoadError, match="kv_cache_dtype bfloat16 needs a CPU; elsewhere it is auto"):
        choose_kv_dtype(options, torch.device("cuda"), torch.float16)


def test_a_far_device_is_warmed_up_with_a_whole_step(far, monkeypatch):
    asked, warm_up = [], loading.warm_up

    def spy(core, context_length, num_tokens):
        asked.append(num_tokens)
        return warm_up(core, context_length, num_tokens)

    monkeypatch.setattr(loading, "warm_up", spy)
    far(max_num_batched_tokens=96)
    assert asked == [96]
