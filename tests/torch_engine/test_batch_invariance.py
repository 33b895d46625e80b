"""With `batch_invariant`, what a request gets is the same bit for bit, whatever runs beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest
import torch
import transformers
from torch.nn.functional import linear

from enginewire import v1 as pb
from enginewire.server.engines.interface import GenerateContext
from enginewire.server.failures import EngineError
from enginewire.torch_engine.folder.folder import ModelLoadError
from enginewire.torch_engine.loading import kernel_choice
from enginewire.torch_engine.loading.load import load_engine
from enginewire.torch_engine.options import TorchEngineOptions
from enginewire.torch_engine.requests.scheduled import Scheduled
from enginewire.torch_engine.runner.unread_tokens import UnreadTokens
from enginewire.torch_engine.runner.vectors import Computed
from tests.torch_engine.tiny import SHAPE, VOCAB, CoreUnderTest

PROMPT = Random(5).choices(range(2, VOCAB), k=37)
# Products of so many inputs change with the number of rows; narrower ones happen not to.
WIDE = {**SHAPE, "intermediate_size": 4864, "num_hidden_layers": 2, "initializer_range": 0.1}
FEW = 12
"""Rows: fewer than a cut has, more than the last of its cuts."""
Load = Callable[..., CoreUnderTest]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(11)
    made = tmp_path_factory.mktemp("wide")
    transformers.AutoModelForCausalLM.from_config(transformers.LlamaConfig(**WIDE)).save_pretrained(made)
    return made


@pytest.fixture
def load_wide(folder: Path) -> Load:
    def make(dtype: str, **options: object) -> CoreUnderTest:
        numbers = dict(zip(("dtype", "kv_cache_dtype"), dtype.split(), strict=False))
        given = {"device": "cpu", "num_threads": 1, "max_num_seqs": 16, "batch_invariant": True, **options}
        chosen = TorchEngineOptions(model=str(folder), **given, **numbers)
        loaded = load_engine(chosen, lambda phase, done: None)
        return CoreUnderTest(loaded, prefix_caching=chosen.enable_prefix_caching)

    return make


def asking(prompt=PROMPT, max_tokens=9, scored=True, **sampling: object) -> pb.PreprocessedRequest:
    return pb.PreprocessedRequest(
        token_ids=prompt,
        sampling_options=pb.SamplingOptions(**{"temperature": 0.0, **sampling}),
        stop_conditions=pb.StopConditions(max_tokens=max_tokens, ignore_eos=True),
        output_options=pb.OutputOptions(logprobs=5, prompt_logprobs=2 if scored else None),
    )


def neighbours(count: int) -> list[pb.PreprocessedRequest]:
    random = Random(count)
    return [
        asking(
            random.choices(range(2, VOCAB), k=random.randint(1, 45)),
            random.randint(1, 12),
            temperature=random.choice([0.0, 1.0]),
            top_k=random.choice([0, 3, 90]),
            seed=i,
        )
        for i in range(count)
    ]


@contextmanager
def noting_logits(
    engine: CoreUnderTest, context: GenerateContext, found: list[torch.Tensor]
) -> Iterator[None]:
    """Add the raw logits of one request to `found`, one row per token that it gets."""
    runner, forward = engine.core._runner, engine.core._runner.forward

    def spy(batch: list[Scheduled], unread: UnreadTokens | None) -> Computed:
        computed = forward(batch, unread)
        sampled = [grant.sequence.request.context for grant in batch if grant.samples]
        found.extend(computed.logits[row].clone() for row, owner in enumerate(sampled) if owner is context)
        return computed

    runner.forward = spy
    yield
    runner.forward = forward


def answer(
    engine: CoreUnderTest, request: pb.PreprocessedRequest, beside: int, before: int = 0
) -> list[object]:
    """Everything that one request gets, `before` of its neighbours being a step ahead of it."""
    others = neighbours(beside)
    for other in others[:before]:
        engine.add(other)
        engine.step()
    logits: list[torch.Tensor] = []
    context = engine.add(request)
    with noting_logits(engine, context, logits):
        for other in others[before:]:
            engine.add(other)
            engine.step()
        engine.run()
    found = engine.answers[context]
    assert found.error is None
    scores = [out.prompt_logprobs for out in found.outputs if out.HasField("prompt_logprobs")]
    assert len(scores) == request.output_options.HasField("prompt_logprobs")
    return [dict(found.tokens), found.logprobs, scores, torch.stack(logits).tolist()]


DTYPES = pytest.mark.parametrize(
    "dtype", ["float32", "bfloat16", "float32 bfloat16", "float32 int8_per_token_head"]
)
"""Of the model, and of the KV cache where that has another."""


@DTYPES
def test_neighbours_change_no_bit(dtype, load_wide):
    engine = load_wide(dtype, enable_prefix_caching=False, max_num_batched_tokens=40)
    alone = answer(engine, asking(), 0)
    for beside in (1, 2, 3, 7, 15):
        assert answer(engine, asking(), beside, before=beside // 2) == alone


@DTYPES
def test_nor_does_how_a_prompt_is_cut(dtype, load_wide):
    alone = answer(load_wide(dtype), asking(), 0)
    engine = load_wide(dtype, block_size=4, max_num_batched_tokens=16)
    assert answer(engine, asking(), 5, before=3) == alone


@DTYPES
def test_nor_does_a_prompt_that_was_cached(dtype, load_wide):
    engine = load_wide(dtype, block_size=4)
    alone = answer(engine, asking(scored=False), 0)
    answer(engine, asking(PROMPT[:20]), 4)
    assert answer(engine, asking(scored=False), 3, before=2) == alone
    again = engine.answer(asking(scored=False)).terminals[0].completion_usage
    assert again.prompt_tokens_details.cached_tokens > 0


@DTYPES
def test_nor_does_preemption(dtype, load_wide):
    request = asking(max_tokens=25, scored=False)
    alone = answer(load_wide(dtype), request, 0)
    engine = load_wide(dtype, block_size=4, num_kv_blocks=17, max_model_len=68)
    assert answer(engine, request, 6, before=4) == alone
    assert engine.core.scheduler.num_preemptions > 0


@DTYPES
def test_nor_do_neighbours_of_a_sampled_request(dtype, load_wide):
    engine = load_wide(dtype)
    request = asking(
        temperature=1.1, top_p=0.9, min_p=0.01, seed=3, repetition_penalty=1.1, presence_penalty=0.2
    )
    alone = answer(engine, request, 0)
    assert answer(engine, request, 11, before=5) == alone


@DTYPES
@pytest.mark.parametrize("cut", [1, 9, 16])
def test_nor_does_a_resume_whose_tokens_are_computed_as_a_prompt(dtype, cut, load_wide):
    engine = load_wide(dtype, enable_prefix_caching=False)
    request = asking(max_tokens=25, temperature=1.0, seed=13, repetition_penalty=1.2, scored=False)
    (whole, *_, logits) = answer(engine, request, 0)
    request.resume.choices.add(index=0, generated_token_ids=whole[0][:cut])
    (rest, *_, later) = answer(engine, request, 5, before=3)
    assert whole[0][:cut] + rest[0] == whole[0]
    assert later == logits[cut:]


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_weights_of_few_bits_are_as_independent(quantization, load_wide):
    engine = load_wide("float32", quantization=quantization)
    alone = answer(engine, asking(), 0)
    assert answer(engine, asking(), 9, before=4) == alone


@DTYPES
def test_two_threads_share_the_work_in_the_same_way(dtype, load_wide):
    try:
        engine = load_wide(dtype, num_threads=2)
        alone = answer(engine, asking(), 0)
        assert answer(engine, asking(), 6, before=3) == alone
    finally:
        torch.set_num_threads(1)


class TwoOrders:
    """Sums few rows in two halves, as some libraries do on some machines."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self.weight, self.bias = weight, bias

    def __call__(self, value: torch.Tensor) -> torch.Tensor:
        if len(value) >= FEW:
            return linear(value, self.weight, self.bias)
        half = value.shape[1] // 2
        rest = linear(value[:, half:], self.weight[:, half:], self.bias)
        return linear(value[:, :half], self.weight[:, :half]) + rest

    def plus(self, value: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return self(value) + other


@pytest.fixture
def two_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_choice, "_tiled", lambda make: TwoOrders)


@DTYPES
def test_a_sum_in_another_order_shows_in_a_cut(dtype, load_wide, two_orders):
    cut = load_wide(dtype, max_num_batched_tokens=16)
    assert answer(cut, asking(), 0) != answer(load_wide(dtype), asking(), 0)


def test_a_sum_in_another_order_shows_beside_others(load_wide, two_orders):
    engine = load_wide("float32", enable_prefix_caching=False, max_num_batched_tokens=40)
    alone = answer(engine, asking(), 0)
    assert answer(engine, asking(), 15, before=7) != alone


@pytest.mark.parametrize("options", [{"compile_kernels": False}, {"dtype": "float16"}])
def test_what_cannot_promise_it_refuses_in_one_line(options, load_wide):
    with pytest.raises(ModelLoadError, match=r"^batch_invariant needs .*compile_kernels") as refused:
        load_wide(**{"dtype": "float32", **options})
    assert "\n" not in str(refused.value)
    assert not isinstance(refused.value, EngineError)


def test_adapters_cannot_promise_it():
    with pytest.raises(ValueError, match="batch_invariant is not for engines with adapters"):
        TorchEngineOptions(batch_invariant=True, max_loras=1)


@pytest.mark.parametrize(("pooling", "embeds"), [("last", True), ("mean", False)])
def test_inputs_are_embedded_only_where_no_sum_depends_on_the_batch(pooling, embeds, load_wide):
    assert (load_wide("float32", pooling=pooling).loaded.embedding is not None) == embeds


def test_models_of_transformers_cannot_promise_it(tmp_path):
    from transformers.models.gpt2 import GPT2Config

    config = GPT2Config(vocab_size=50, n_positions=32, n_embd=8, n_layer=1, n_head=2)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    chosen = TorchEngineOptions(model=str(tmp_path), device="cpu", batch_invariant=True, num_threads=1)
    with pytest.raises(ModelLoadError, match="batch_invariant is not for models of transformers"):
        load_engine(chosen, lambda phase, done: None)
