"""A step asks the device for numbers once. What would wait for a GPU is counted here on a CPU."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from enginewire import v1 as pb
from enginewire.torch_engine.layers.device import (
    HostCopy,
    gather,
    join_rows,
    send,
    send_column,
    send_index,
    split_rows,
    wait_for,
)
from enginewire.torch_engine.layers.varlen_ops import VarlenOps
from enginewire.torch_engine.loading import kernel_choice
from enginewire.torch_engine.sampling import sampler
from tests.torch_engine.models.test_exactness import prompts
from tests.torch_engine.tiny import greedy

CPU = torch.device("cpu")
WAITING = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "is_nonzero", "equal")


class Waits(TorchDispatchMode):
    """Counts what would make the host wait for a device."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.found: list[str] = []
        for name in ("tolist", "cpu", "numpy", "item", "__bool__"):
            patch.setattr(torch.Tensor, name, self._noting(name, getattr(torch.Tensor, name)))
        for name in ("__getitem__", "__setitem__"):
            patch.setattr(torch.Tensor, name, self._noting_lists(name, getattr(torch.Tensor, name)))
        patch.setattr(torch, "tensor", self._noting_devices(torch.tensor))

    def _noting(self, name, method):
        def noted(tensor: Tensor, *args: object, **options: object) -> object:
            self.found.append(name)
            return method(tensor, *args, **options)

        return noted

    def _noting_lists(self, name, method):
        """Numbers to index with travel from ordinary memory, for which the host waits."""

        def noted(tensor: Tensor, index: object, *value: object) -> object:
            indexes = index if isinstance(index, tuple) else (index,)
            if any(isinstance(each, list) for each in indexes):
                self.found.append(name)
            return method(tensor, index, *value)

        return noted

    def _noting_devices(self, make):
        """As `_noting_lists`, for a tensor that is made elsewhere."""

        def noted(*args: object, **options: object) -> Tensor:
            if "device" in options:
                self.found.append("tensor")
            return make(*args, **options)

        return noted

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        has_mask = name in ("index", "index_put_") and any(
            isinstance(index, Tensor) and index.dtype == torch.bool for index in args[1]
        )
        if name in WAITING or has_mask:
            self.found.append(name)
        return func(*args, **(kwargs or {}))


def sampled(seed: int, **options: object) -> pb.PreprocessedRequest:
    request = greedy([5, 9, 30 + seed], 6)
    request.sampling_options.CopyFrom(pb.SamplingOptions(temperature=0.9, seed=seed, **options))
    return request


def blind(query: Tensor, *_: object, **__: object) -> Tensor:
    return query.clone()


def ruled(seed: int) -> pb.PreprocessedRequest:
    """With all the rules that look at single tokens."""
    request = sampled(
        seed,
        logit_bias=[pb.LogitBias(token_id=7, bias=3.0)],
        allowed_token_ids=range(40),
        bad_words_token_ids=[pb.TokenSequence(token_ids=[9]), pb.TokenSequence(token_ids=[8, 12])],
    )
    request.stop_conditions.MergeFrom(pb.StopConditions(min_tokens=4, stop_token_ids=[11, 13]))
    return request


@pytest.mark.parametrize("ops", [VarlenOps(blind), None], ids=["kernel", "plain torch"])
def test_a_step_of_any_mixture_waits_once(ops, load, monkeypatch):
    monkeypatch.setattr(kernel_choice, "varlen_ops", lambda *_: ops)
    engine = load("qwen3", max_num_batched_tokens=40, compile_kernels=False)
    monkeypatch.setattr(sampler, "is_far", lambda device: True)
    for prompt in prompts((3, 20, 33)):
        engine.add(greedy(prompt, 8))
    for seed, options in enumerate([{}, {"top_p": 0.9}, {"top_k": 5}, {"min_p": 0.1, "top_p": 0.8}]):
        engine.add(sampled(seed, **options))
    engine.add(sampled(9, repetition_penalty=1.2, frequency_penalty=0.3))
    engine.add(ruled(10))
    num_steps = 0
    with monkeypatch.context() as patch, Waits(patch) as waits:
        while engine.core.has_work:
            waits.found.clear()
            engine.step()
            num_steps += 1
            assert waits.found == ["tolist"]
    assert num_steps > 8


def test_the_count_notices_a_second_wait(monkeypatch):
    value = torch.ones(3)
    with monkeypatch.context() as patch, Waits(patch) as waits:
        HostCopy(value).read()
        float(value.sum())
        value[value > 0]
        if value.any():
            value.nonzero()
        before = len(waits.found)
        assert before > 5
        value[[0, 2]] = value[[1, 0]]
        torch.tensor([1.0], device=CPU)
    assert waits.found[before:] == ["__getitem__", "__setitem__", "tensor"]


def test_a_distribution_is_cut_the_same_far_away(monkeypatch, load):
    requests = [sampled(seed, top_p=0.95, top_k=seed % 3 * 4) for seed in range(8)]
    near = [load("llama").answer(request).tokens for request in requests]
    monkeypatch.setattr(sampler, "is_far", lambda device: True)
    assert [load("llama").answer(request).tokens for request in requests] == near


def test_columns_arrive_in_order_in_one_buffer():
    columns = send([[1, 2], [], [3]], CPU)
    assert [column.tolist() for column in columns] == [[1, 2], [], [3]]
    assert columns[0].dtype == torch.int32
    assert columns[0].untyped_storage().data_ptr() == columns[2].untyped_storage().data_ptr()
    assert gather([[4], [5, 6]], CPU).tolist() == [4, 5, 6]


def test_rows_and_columns_have_the_types_of_their_use():
    assert send_index([2, 0], CPU).dtype == torch.int64
    column = send_column([0.5, 2.0], torch.empty(0, dtype=torch.float64))
    assert column.tolist() == [[0.5], [2.0]]
    assert column.dtype == torch.float64
    assert HostCopy(torch.tensor([3, 4]), torch.tensor([True, False])).read() == [[3, 4], [1, 0]]


def test_only_a_far_device_is_waited_for(monkeypatch):
    asked: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "synchronize", asked.append)
    far_away = torch.device("cuda", 0)
    wait_for(CPU)
    wait_for(far_away)
    assert asked == [far_away]


@pytest.mark.parametrize("count", [1, 3, 4, 5, 9])
def test_tiles_have_one_size_and_join_to_what_they_were(count):
    rows = torch.arange(count * 2.0).view(count, 2)
    tiles = split_rows(rows, 4)
    assert {tile.shape for tile in tiles} == {(4, 2)}
    assert join_rows(tiles, count).equal(rows)
    assert torch.cat(tiles)[count:].eq(0).all()


def test_far_away_sums_are_made_of_the_same_number_of_rows_each_time(monkeypatch):
    monkeypatch.setattr(sampler, "is_far", lambda device: True)
    summed: list[int] = []
    cumsum = Tensor.cumsum

    def noting(values: Tensor, dim: int) -> Tensor:
        summed.append(len(values))
        return cumsum(values, dim)

    monkeypatch.setattr(Tensor, "cumsum", noting)
    values = torch.rand(sampler.SUMMED_ROWS + 3, 7)
    assert sampler._running_sums(values).equal(cumsum(values, -1))
    assert summed == [sampler.SUMMED_ROWS] * 2
