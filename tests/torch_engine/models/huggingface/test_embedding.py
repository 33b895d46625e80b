"""Every architecture of the table gives the vectors of its network without a head, whatever is beside it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, Llama4ForCausalLM, OPTForCausalLM, PreTrainedModel

from enginewire.server.engines.interface import GenerateContext
from enginewire.torch_engine.engine import TorchEngine
from tests.torch_engine.embedding_oracle import vectors_of
from tests.torch_engine.models.huggingface.configs import SERVED, tiny_config
from tests.torch_engine.test_embedding import INPUTS, assert_close, embedded, running
from tests.torch_engine.tiny import greedy


def save(model_type: str, folder: Path) -> PreTrainedModel:
    torch.manual_seed(5)
    config = tiny_config(model_type, SERVED[model_type])
    network = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    network.save_pretrained(folder)
    return network


def body_of(network: PreTrainedModel) -> PreTrainedModel:
    """The network below its head, by the names that the families give it."""
    if isinstance(network, OPTForCausalLM):
        return network.model.decoder
    return network.model if isinstance(network, Llama4ForCausalLM) else network.base_model


async def context_of(engine: TorchEngine) -> int:
    return (await engine._thread.loaded).context_length


@pytest.mark.parametrize("model_type", SERVED)
async def test_vectors_are_those_of_transformers(model_type, tmp_path):
    network = save(model_type, tmp_path)
    async with running(tmp_path, pooling="mean", max_num_batched_tokens=13) as engine:
        inputs = [each for each in INPUTS if len(each) < (await context_of(engine))]
        wanted = vectors_of(body_of(network), inputs, "mean")
        other = engine.generate(greedy([3, 4, 5], 20), GenerateContext("g"))
        await anext(other)
        assert_close(await embedded(engine, *inputs), wanted)
        await other.aclose()
