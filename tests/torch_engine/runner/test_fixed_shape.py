"""batch_invariant on a GPU: steps of any size in parts of one shape, with stand-ins for kernel and graphs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from enginewire import v1 as pb
from enginewire.torch_engine.folder.folder import ModelLoadError
from enginewire.torch_engine.layers.varlen_ops import VarlenOps
from enginewire.torch_engine.loading import graphs as recorded_graphs, kernel_choice, load as loading
from enginewire.torch_engine.runner import fixed_shape
from enginewire.torch_engine.runner.decode_graphs import Compute
from enginewire.torch_engine.runner.fixed_shape import FIXED_ROWS, FixedShape
from tests.long import long_but
from tests.torch_engine.layers.varlen_emulation import varlen_attn
from tests.torch_engine.models.test_exactness import prompts
from tests.torch_engine.runner.test_decode_graphs import FakeRecorder
from tests.torch_engine.tiny import CoreUnderTest, greedy

LONG = prompts((150, 3, 70))


@pytest.fixture
def recorder(monkeypatch) -> FakeRecorder:
    """A device that looks far, with the kernel and with graphs."""
    made = FakeRecorder()
    monkeypatch.setattr(kernel_choice, "varlen_ops", lambda *_: VarlenOps(varlen_attn))
    monkeypatch.setattr(kernel_choice, "is_far", lambda device: True)
    monkeypatch.setattr(recorded_graphs, "graph_recorder", lambda device: made)
    return made


@pytest.fixture
def invariant(load, recorder) -> Callable[..., CoreUnderTest]:
    return lambda family="llama", **options: load(family, batch_invariant=True, **options)


def scored(prompt: list[int], max_tokens: int) -> pb.PreprocessedRequest:
    request = greedy(prompt, max_tokens)
    request.output_options.CopyFrom(pb.OutputOptions(logprobs=3, prompt_logprobs=2))
    return request


@pytest.mark.parametrize("family", long_but(["mistral"], ["llama", "mistral", "qwen3"]))
def test_everything_goes_through_one_shape_and_equals_transformers(family, invariant, recorder, expected):
    engine = invariant(family, block_size=4, max_num_batched_tokens=100)
    contexts = [engine.add(greedy(prompt, 9)) for prompt in LONG]
    engine.run()
    for context, prompt in zip(contexts, LONG, strict=True):
        assert engine.answers[context].tokens[0] == expected(family, prompt, 9)
    assert set(recorder.replayed) == {FIXED_ROWS}


def test_a_step_takes_as_many_parts_as_its_tokens_fill(invariant, recorder):
    engine = invariant(max_num_batched_tokens=200)
    recorder.replayed.clear()
    engine.answer(greedy(LONG[0], 3))
    assert len(recorder.replayed) == 3 + 1 + 1


def test_scores_of_prompts_come_in_order(invariant, load):
    wanted = load("llama").answer(scored(LONG[0], 4))
    engine = invariant(max_num_batched_tokens=170)
    context = engine.add(scored(LONG[0], 4))
    engine.add(greedy(LONG[1], 9))
    engine.run()
    found = engine.answers[context]
    assert found.tokens == wanted.tokens
    ours, theirs = (answer.outputs[0].prompt_logprobs.logprobs for answer in (found, wanted))
    assert ours.token_logprobs == pytest.approx(list(theirs.token_logprobs), abs=1e-4)
    assert len(ours.token_logprobs) == len(LONG[0]) - 1


def test_neighbours_change_no_bit(invariant):
    alone = invariant().answer(scored(LONG[2], 8))
    engine = invariant(block_size=4, max_num_batched_tokens=40)
    for prompt in LONG[:2]:
        engine.add(greedy(prompt, 20))
    engine.step()
    context = engine.add(scored(LONG[2], 8))
    engine.run()
    found = engine.answers[context]
    assert found.tokens == alone.tokens
    assert found.logprobs == alone.logprobs
    assert found.outputs[0].prompt_logprobs == alone.outputs[0].prompt_logprobs


def test_tokens_that_the_host_has_not_read_reach_their_part(invariant, monkeypatch, expected):
    monkeypatch.setattr(loading, "is_far", lambda device: True)
    monkeypatch.setattr(fixed_shape, "FIXED_ROWS", 2)
    monkeypatch.setattr(recorded_graphs, "FIXED_ROWS", 2)
    monkeypatch.setattr(FixedShape, "is_invariant", lambda *_: True)  # it needs more rows than these
    engine = invariant(block_size=4)
    contexts = [engine.add(greedy(prompt, 9)) for prompt in LONG]
    engine.run()
    assert engine.num_failed_batches == 0
    for context, prompt in zip(contexts, LONG, strict=True):
        assert engine.answers[context].tokens[0] == expected("llama", prompt, 9)


@pytest.mark.parametrize(
    "change",
    [
        lambda logits: logits.sum() * 1e-6,
        lambda logits: torch.arange(len(logits))[:, None] * 1e-3,
    ],
    ids=["its neighbours", "its place"],
)
def test_a_device_on_which_a_row_depends_on_more_than_itself_is_refused(change, invariant, monkeypatch):
    class Leaking(FakeRecorder):
        def __call__(self, compute: Compute) -> Compute:
            replay = super().__call__(compute)

            def leak() -> Tensor:
                logits = replay()
                return logits.add_(change(logits))

            return leak

    monkeypatch.setattr(recorded_graphs, "graph_recorder", lambda device: Leaking())
    with pytest.raises(ModelLoadError, match="a row still depends on the rows beside it"):
        invariant()


def test_without_graphs_it_is_refused_with_the_reason(invariant, monkeypatch):
    def fail(compute: Compute) -> Compute:
        raise RuntimeError("out of memory\nand much more")

    monkeypatch.setattr(recorded_graphs, "graph_recorder", lambda device: fail)
    with pytest.raises(ModelLoadError, match=r"cannot be recorded: out of memory$"):
        invariant()
    monkeypatch.setattr(recorded_graphs, "graph_recorder", lambda device: None)
    with pytest.raises(ModelLoadError, match="graphs, which this device does not have"):
        invariant()


def test_without_the_kernel_it_is_refused(invariant, monkeypatch):
    monkeypatch.setattr(kernel_choice, "varlen_ops", lambda *_: None)
    with pytest.raises(ModelLoadError, match="or a GPU, the dtype bfloat16 or float16"):
        invariant()


def test_it_neither_embeds_nor_takes_embeddings(invariant):
    loaded = invariant().loaded
    assert loaded.embedding is None
    assert loaded.embedding_width is None
