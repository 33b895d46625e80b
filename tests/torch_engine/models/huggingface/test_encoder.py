"""Encoders: the vectors of transformers, alone and in a crowd, and the real MiniLM on known sentences."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
import torch
import transformers
from hypothesis import given, strategies as st
from tokenizers import Tokenizer

from enginewire import v1 as pb
from enginewire.server.engines.interface import GenerateContext
from enginewire.server.failures import Unsupported
from enginewire.torch_engine.engine import TorchEngine
from enginewire.torch_engine.folder.config import ENCODERS
from enginewire.torch_engine.folder.folder import ModelLoadError
from enginewire.torch_engine.options import TorchEngineOptions
from enginewire.torch_engine.runner.encoder import MOST_PADDING, groups_of
from tests.torch_engine.embedding_oracle import vectors_of
from tests.torch_engine.minilm import MINILM
from tests.torch_engine.models.huggingface.configs import tiny_config
from tests.torch_engine.models.huggingface.wide_models import widen
from tests.torch_engine.test_embedding import INPUTS, assert_close, embedded, running
from tests.torch_engine.tiny import greedy

POOLINGS = ("last", "mean", "cls")
SIMILAR = ("A man is eating food.", "A man is eating a piece of bread.")
OTHER = "The girl is carrying a baby."
KNOWN = {(0, 1): 0.7553, (0, 2): -0.1050, (1, 2): -0.0610}
"""Cosines of the sentences by sentence-transformers 6.2.0, `similarity` of all-MiniLM-L6-v2."""


def save(model_type: str, folder: Path, *, masked_lm: bool = False) -> Path:
    """The folder of a random encoder with weights wide enough to make neighbours matter."""
    torch.manual_seed(5)
    kind = transformers.AutoModelForMaskedLM if masked_lm else transformers.AutoModel
    network = kind.from_config(tiny_config(model_type, {"max_position_embeddings": 96}))
    widen(network)
    network.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("model_type", ENCODERS)
async def test_vectors_are_those_of_transformers(model_type, tmp_path, capfd):
    folder = save(model_type, tmp_path)
    network = transformers.AutoModel.from_pretrained(folder).eval()
    wanted = vectors_of(network, INPUTS, "mean")
    capfd.readouterr()
    async with running(folder) as engine:
        assert "".join(capfd.readouterr()) == ""
        assert_close(await embedded(engine, *INPUTS), wanted)
        assert_close(await embedded(engine, INPUTS[1]), wanted[1:2])


@pytest.mark.parametrize("pooling", POOLINGS)
async def test_every_pooling_of_a_masked_language_model(pooling, tmp_path):
    folder = save("bert", tmp_path, masked_lm=True)
    wanted = vectors_of(transformers.AutoModel.from_pretrained(folder).eval(), INPUTS, pooling)
    async with running(folder, pooling=pooling) as engine:
        assert_close(await embedded(engine, *INPUTS), wanted)


async def test_more_inputs_than_fit_into_a_step_take_several(tmp_path):
    folder = save("bert", tmp_path)
    wanted = vectors_of(transformers.AutoModel.from_pretrained(folder).eval(), INPUTS, "mean")
    async with running(folder, max_num_seqs=3, max_num_batched_tokens=8) as engine:
        vectors = await asyncio.gather(*[embedded(engine, *INPUTS) for _ in range(4)])
        for each in vectors:
            assert_close(each, wanted)
        assert engine.load().step >= 4 * len(INPUTS) / 3


async def test_an_encoder_says_that_it_only_embeds_and_refuses_to_generate(tmp_path):
    folder = save("bert", tmp_path)
    engine = TorchEngine(TorchEngineOptions(model=str(folder), device="cpu", num_threads=1))
    config = await engine.start(0)
    assert config.capabilities == pb.Capabilities(embeddings=True)
    assert config.limits == pb.Limits(max_prompt_tokens=96)
    assert not config.HasField("kv_cache_block_size")
    assert not config.HasField("total_kv_blocks")
    assert engine.load().kv_blocks_total == 0
    assert engine.only_embeds
    assert await engine.kv_event_sources() == []
    with pytest.raises(Unsupported, match="only embeds"):
        engine.submit(greedy([3, 4], 5), GenerateContext("g"))
    with pytest.raises(Unsupported):
        await engine.reset_prefix_cache()
    await engine.cleanup()


async def test_the_longest_input_is_what_the_folder_or_the_operator_says(tmp_path):
    folder = save("roberta", tmp_path)
    async with running(folder) as engine:
        longest = (await engine._thread.loaded).context_length
        assert longest == 95  # one position is that of padding
        await embedded(engine, [5] * longest)
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 40}))
    async with running(folder) as engine:
        assert (await engine._thread.loaded).context_length == 40
    async with running(folder, max_model_len=50) as engine:
        assert (await engine._thread.loaded).context_length == 50
    with pytest.raises(ModelLoadError, match="max_model_len 96 is above the model's 95 positions"):
        async with running(folder, max_model_len=96):
            pass


async def test_an_encoder_whose_weights_are_broken_does_not_start(tmp_path):
    folder = save("bert", tmp_path)
    network = transformers.AutoModel.from_pretrained(folder)
    network.embeddings.word_embeddings.weight.data.fill_(float("nan"))
    network.save_pretrained(folder)
    with pytest.raises(ModelLoadError, match="no usable vectors"):
        async with running(folder):
            pass


@pytest.mark.parametrize("option", [{"quantization": "int8"}, {"kv_cache_dtype": "bfloat16"}])
async def test_int8_weights_and_another_cache_are_not_for_encoders(option, tmp_path):
    with pytest.raises(ModelLoadError, match=next(iter(option))):
        async with running(save("bert", tmp_path), **option):
            pass


async def test_the_real_model_knows_which_sentences_are_alike():
    tokenizer = Tokenizer.from_file(str(MINILM / "tokenizer.json"))
    tokenizer.no_padding()
    sentences = [tokenizer.encode(text).ids for text in (*SIMILAR, OTHER)]
    wanted = vectors_of(transformers.AutoModel.from_pretrained(MINILM).eval(), sentences, "mean")
    async with running(MINILM) as engine:
        vectors = await embedded(engine, *sentences)
        assert engine.embedding_size == 384
        assert (await engine._thread.loaded).context_length == 256
    assert_close(vectors, wanted)
    for (one, other), cosine in KNOWN.items():
        assert float(vectors[one] @ vectors[other]) == pytest.approx(cosine, abs=1e-3)


@given(st.lists(st.integers(1, 60), min_size=1, max_size=30))
def test_groups_hold_every_input_once_and_little_padding(lengths):
    groups = list(groups_of(lengths))
    assert sorted(place for group in groups for place in group) == list(range(len(lengths)))
    for group in groups:
        sizes = [lengths[place] for place in group]
        assert sum(sizes) >= (1 - MOST_PADDING) * len(sizes) * max(sizes)
