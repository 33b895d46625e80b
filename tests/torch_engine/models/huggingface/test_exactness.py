"""Every architecture of the table says what transformers says, tokens and vectors, however the batch looks.

One test for both: to make a model, save it, load it and warm it up takes longer than to ask it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence as Seq
from pathlib import Path
from random import Random

import pytest
import torch
import transformers

from enginewire.torch_engine.loading.load import load_engine
from enginewire.torch_engine.options import TorchEngineOptions
from tests.long import long_but
from tests.torch_engine.embedding_oracle import vectors_of
from tests.torch_engine.models.huggingface.configs import SERVED
from tests.torch_engine.models.huggingface.wide_models import save_wide
from tests.torch_engine.test_embedding import assert_close
from tests.torch_engine.tiny import VOCAB, CoreUnderTest, greedy

USUAL = (
    "deepseek_v3", "gemma2", "gemma3n_text", "gpt2", "gpt_oss", "granitemoehybrid", "llama4_text", "opt",
    "phi3",
)  # fmt: skip
"""One of each kind: dense and with experts, attention of every sort, old and new."""
LENGTHS = (1, 21, 9, 14)
MAX_TOKENS = 6
TIE = 1e-3
"""Logits closer than this may change places by rounding: float32, batches of another shape."""


@pytest.fixture
def build(tmp_path: Path) -> Callable[[str], tuple[Path, transformers.PreTrainedModel]]:
    """The folder of a random model, and the model as transformers runs it, which never stops by itself."""

    def make(model_type: str) -> tuple[Path, transformers.PreTrainedModel]:
        network = save_wide(tmp_path, model_type)
        network.generation_config.eos_token_id = None
        return tmp_path, network

    return make


def prompts() -> list[list[int]]:
    random = Random(3)
    return [[random.randrange(2, VOCAB) for _ in range(length)] for length in LENGTHS]


def generate(network: transformers.PreTrainedModel, prompt: Seq[int]) -> list[int]:
    """The prompt and what follows."""
    ids = torch.tensor([list(prompt)])
    limits = {"max_new_tokens": MAX_TOKENS, "min_new_tokens": MAX_TOKENS}
    mask = torch.ones_like(ids)
    return network.generate(ids, attention_mask=mask, do_sample=False, pad_token_id=0, **limits)[0].tolist()


@torch.inference_mode()
def assert_same(network: transformers.PreTrainedModel, generated: list[int], tokens: list[int]) -> None:
    """Equal to the end of `generated`, or different first where its best two logits are a tie."""
    prompt, wanted = generated[:-MAX_TOKENS], generated[-MAX_TOKENS:]
    assert len(tokens) == MAX_TOKENS
    for position, (token, best) in enumerate(zip(tokens, wanted, strict=True)):
        if token != best:
            ids = torch.tensor([prompt + wanted[:position]])
            logits = network(input_ids=ids, use_cache=False).logits[0, -1]
            assert logits[best] - logits[token] < TIE
            return


def body_of(network: transformers.PreTrainedModel) -> transformers.PreTrainedModel:
    """The network below its head, by the names that the families give it."""
    if isinstance(network, transformers.OPTForCausalLM):
        return network.model.decoder
    return network.model if isinstance(network, transformers.Llama4ForCausalLM) else network.base_model


def load(folder: Path) -> CoreUnderTest:
    """Small steps, and blocks for half of the crowd."""
    options = TorchEngineOptions(
        model=str(folder),
        device="cpu",
        dtype="float32",
        num_threads=1,
        max_num_seqs=6,
        max_num_batched_tokens=7,
        block_size=4,
        num_kv_blocks=8,
        max_model_len=32,
        pooling="mean",
    )
    return CoreUnderTest(load_engine(options, lambda phase, done: None))


@pytest.mark.parametrize("model_type", long_but(USUAL, SERVED))
def test_alone_crowded_chunked_and_preempted_equal_transformers(model_type, build, capfd):
    folder, network = build(model_type)
    capfd.readouterr()
    engine = load(folder)
    assert "".join(capfd.readouterr()) == ""
    assert_tokens(engine, network)
    assert_vectors(engine, network)


def assert_tokens(engine: CoreUnderTest, network: transformers.PreTrainedModel) -> None:
    """Alone, and in a crowd that arrives late, in chunks, with a preempted request and two choices each."""
    generated = [generate(network, prompt) for prompt in prompts()]
    assert_same(network, generated[1], engine.answer(greedy(prompts()[1], MAX_TOKENS)).tokens[0])
    contexts = []
    for prompt in prompts():
        contexts.append(engine.add(greedy(prompt, MAX_TOKENS, n=2)))
        engine.step()
    engine.preempt_one()
    engine.run()
    scheduler = engine.core.scheduler
    assert scheduler.num_preemptions > (0 if scheduler.window else 1)
    for context, each in zip(contexts, generated, strict=True):
        first, second = engine.answers[context].tokens.values()
        assert first == second
        assert_same(network, each, first)


def assert_vectors(engine: CoreUnderTest, network: transformers.PreTrainedModel) -> None:
    """In chunks, and beside a request that is running."""
    engine.add(greedy(prompts()[1], MAX_TOKENS))
    engine.step()
    contexts = [engine.add_input(each) for each in prompts()]
    engine.run()
    vectors = torch.tensor([engine.vectors[context] for context in contexts])
    assert_close(vectors, vectors_of(body_of(network), prompts(), "mean"))
