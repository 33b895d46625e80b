"""Decode steps through graphs, with a recorder that calls what it should have recorded."""

from __future__ import annotations

import weakref

import pytest
import torch
from torch import Tensor

from enginewire import v1 as pb
from enginewire.torch_engine.layers.attention import Span
from enginewire.torch_engine.layers.varlen_ops import VarlenOps
from enginewire.torch_engine.loading import graphs as recorded_graphs, kernel_choice
from enginewire.torch_engine.options import SpeculativeConfig
from enginewire.torch_engine.runner.decode_graphs import Compute, graph_sizes
from tests.long import long_but
from tests.torch_engine.drafting.drafters import KINDS, draft_with
from tests.torch_engine.layers.varlen_emulation import varlen_attn
from tests.torch_engine.models.test_exactness import prompts
from tests.torch_engine.tiny import CoreUnderTest, greedy


class FakeRecorder:
    """Every replay computes again on the same tensors into the same result, as a graph does."""

    def __init__(self) -> None:
        self.replayed: list[int] = []

    def __call__(self, compute: Compute) -> Compute:
        result = compute()

        def replay() -> Tensor:
            self.replayed.append(len(result))
            return result.copy_(compute())

        return replay


@pytest.fixture
def recorder(monkeypatch) -> FakeRecorder:
    made = FakeRecorder()
    monkeypatch.setattr(kernel_choice, "varlen_ops", lambda *_: VarlenOps(varlen_attn))
    monkeypatch.setattr(recorded_graphs, "graph_recorder", lambda device: made)
    return made


@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_decodes_are_replayed_padded_and_equal_transformers(family, load, recorder, expected):
    engine = load(family, max_num_seqs=7, block_size=4)
    recorder.replayed.clear()
    contexts = [engine.add(greedy(prompt, 8 + i)) for i, prompt in enumerate(prompts())]
    engine.run()
    for i, (context, prompt) in enumerate(zip(contexts, prompts(), strict=True)):
        assert engine.answers[context].tokens[0] == expected(family, prompt, 8 + i)
    # Seven sequences end one by one.
    assert list(dict.fromkeys(recorder.replayed)) == [7, 4, 2, 1]


def test_tokens_that_the_host_has_not_read_reach_the_graphs(far, recorder, expected):
    engine = far(max_num_seqs=7, block_size=4)
    contexts = [engine.add(greedy(prompt, 8 + i)) for i, prompt in enumerate(prompts())]
    engine.run()
    assert len(recorder.replayed) > 8
    assert engine.num_failed_batches == 0
    for i, (context, prompt) in enumerate(zip(contexts, prompts(), strict=True)):
        assert engine.answers[context].tokens[0] == expected("llama", prompt, 8 + i)


def drafts(num_tokens: int) -> SpeculativeConfig:
    return SpeculativeConfig(num_speculative_tokens=num_tokens, prompt_lookup_min=1, prompt_lookup_max=2)


@pytest.mark.parametrize("family", long_but(["mistral"], ["llama", "mistral"]))
@pytest.mark.parametrize("kind", KINDS)
def test_drafts_are_replayed_as_rows_of_their_own_and_equal_transformers(
    family, kind, load, recorder, expected
):
    engine = load(family, max_num_seqs=3, block_size=4, speculative_config=drafts(7))
    asked = prompts()
    draft_with(engine, kind, {(tuple(prompt), 0): list(expected(family, prompt, 12)) for prompt in asked})
    recorder.replayed.clear()
    contexts = [engine.add(greedy(prompt, 12)) for prompt in asked]
    engine.run()
    for context, prompt in zip(contexts, asked, strict=True):
        assert engine.answers[context].tokens[0] == expected(family, prompt, 12)
    assert max(recorder.replayed) > 3, "more rows than sequences"


@pytest.mark.parametrize(
    ("sequences", "drafted", "largest"), [(1, 0, 1), (1, 8, 9), (4, 8, 36), (16, 8, 64), (100, 8, 100)]
)
def test_graphs_are_large_enough_for_what_is_drafted(sequences, drafted, largest, load, recorder):
    config = drafts(drafted) if drafted else None
    engine = load("llama", max_num_seqs=sequences, speculative_config=config)
    assert max(engine.core._runner._graphs._graphs) == largest


def test_what_pads_a_batch_touches_no_block_of_the_pool(load, recorder):
    engine = load("llama", max_num_seqs=8, num_kv_blocks=6, block_size=4, enable_prefix_caching=False)
    storage = engine.core._runner.cache._storage
    assert storage.shape[2] == 7
    storage[:, :, :6] = 0.5
    engine.core._runner._graphs.forward([Span(1, 3, [2])] * 3, [5, 6, 7])
    touched = (storage != 0.5).flatten(3).any(-1).any(0).any(0)
    assert touched.tolist() == [False, False, True, False, False, False, True]


def test_logits_of_a_padded_batch_are_those_of_the_batch_alone(load, recorder):
    engine = load("qwen3", block_size=4)
    engine.core._runner.cache._storage.fill_(0.1)
    graphs = engine.core._runner._graphs
    spans, tokens = [Span(1, 2, [3]), Span(1, 6, [5, 1]), Span(1, 1, [0])], [4, 9, 17]
    together = graphs.forward(spans, tokens).clone()
    for i in range(3):
        alone = graphs.forward(spans[i : i + 1], tokens[i : i + 1])
        torch.testing.assert_close(alone[0], together[i])


def test_the_tensors_that_a_graph_reads_live_as_long_as_it_does(load, recorder, monkeypatch):
    read: list[weakref.ref[Tensor]] = []

    def record(compute: Compute) -> Compute:
        """Keeps what a graph keeps: nothing that it reads."""
        result = compute()
        held = [cell.cell_contents for cell in compute.__closure__]
        read.extend(weakref.ref(value) for value in held if isinstance(value, Tensor))
        return lambda: result

    monkeypatch.setattr(recorded_graphs, "graph_recorder", lambda device: record)
    engine = load("llama", max_num_seqs=4)
    assert len(read) == 3 * len(engine.core._runner._graphs._graphs)
    assert all(tensor() is not None for tensor in read)


def test_graphs_of_all_sizes_leave_their_logits_in_one_place(load, recorder):
    graphs = load("llama", max_num_seqs=8).core._runner._graphs
    places = {graphs.forward([Span(1, 1, [0])] * size, [1] * size).data_ptr() for size in (1, 3, 8)}
    assert len(places) == 1


def test_a_batch_or_a_table_that_is_too_large_for_every_graph_is_left_alone(load, recorder):
    engine = load("llama", max_num_seqs=2, block_size=4, max_model_len=20)
    graphs = engine.core._runner._graphs
    assert graphs.forward([Span(1, 1, [0])] * 3, [1, 2, 3]) is None
    assert graphs.forward([Span(1, 1, [0, 1, 2, 3, 4, 5])], [1]) is None
    assert graphs.forward([Span(1, 1, [0])], [1]) is not None


def test_prompts_and_what_asks_for_more_than_a_token_go_around_the_graphs(load, recorder):
    engine = load("llama")
    recorder.replayed.clear()
    request = greedy([7, 8], 1)
    request.output_options.CopyFrom(pb.OutputOptions(prompt_logprobs=1))
    engine.answer(request)
    engine.answer(greedy([5] * 30, 1))
    assert recorder.replayed == []


@pytest.mark.parametrize(
    ("max_rows", "sizes"),
    [
        (1, [1]),
        (2, [1, 2]),
        (6, [1, 2, 4, 6]),
        (32, [1, 2, 4, 8, 16, 32]),
        (100, [1, 2, 4, 8, 16, 32, 64, 96, 100]),
    ],
)
def test_there_are_a_few_sizes_up_to_the_largest_batch(max_rows, sizes):
    assert graph_sizes(max_rows) == sizes


def test_an_engine_that_cannot_record_says_so_and_goes_on(load, recorder, monkeypatch, caplog):
    def fail(compute: Compute) -> Compute:
        raise RuntimeError("out of memory\nand much more")

    monkeypatch.setattr(recorded_graphs, "graph_recorder", lambda device: fail)
    engine = load("llama")
    assert len(engine.answer(greedy([3, 4], 4)).tokens[0]) == 4
    assert "without graphs, which is slower: out of memory" in caplog.text
    assert "much more" not in caplog.text


def test_without_the_kernel_there_are_no_graphs(load, monkeypatch):
    monkeypatch.setattr(recorded_graphs, "graph_recorder", lambda device: FakeRecorder())
    engine: CoreUnderTest = load("llama")
    assert engine.core._runner._graphs is None
