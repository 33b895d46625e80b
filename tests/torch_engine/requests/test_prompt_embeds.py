"""Prompts as embeddings: those of token ids give what the ids give, and nothing unchecked gets in."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence as Seq
from pathlib import Path

import pytest
import torch
import transformers

from enginewire import v1 as pb
from enginewire.server.failures import EngineError, InvalidRequest, Unsupported
from enginewire.torch_engine.loading.load import load_engine
from enginewire.torch_engine.options import TorchEngineOptions
from tests.torch_engine.models.huggingface.wide_models import save_wide
from tests.torch_engine.models.test_exactness import prompts
from tests.torch_engine.tiny import FAMILIES, CoreUnderTest, greedy

PROMPT = prompts((21,))[0]
TYPES = {
    torch.float32: pb.DATA_TYPE_FLOAT32,
    torch.float16: pb.DATA_TYPE_FLOAT16,
    torch.bfloat16: pb.DATA_TYPE_BFLOAT16,
}


def tensor_of(values: torch.Tensor) -> pb.Tensor:
    data = values.contiguous().view(torch.uint8).numpy().tobytes()
    return pb.Tensor(data_type=TYPES[values.dtype], shape=values.shape, data=data)


@torch.inference_mode()
def embedded(
    network: transformers.PreTrainedModel,
    prompt: Seq[int],
    max_tokens: int,
    dtype: torch.dtype = torch.float32,
    n: int = 1,
) -> pb.PreprocessedRequest:
    """A greedy request with the embeddings of `prompt`."""
    request = greedy([], max_tokens, n=n)
    values = network.get_input_embeddings()(torch.tensor(prompt))
    request.prompt_embeds.CopyFrom(tensor_of(values.to(dtype)))
    return request


@pytest.fixture
def network(oracle) -> transformers.PreTrainedModel:
    return oracle("llama")


@pytest.mark.parametrize("family", FAMILIES)
def test_the_embeddings_of_token_ids_give_their_tokens(family, load, oracle, expected):
    answer = load(family).answer(embedded(oracle(family), PROMPT, 12))
    assert answer.tokens[0] == expected(family, PROMPT, 12)
    usage = answer.terminals[-1].completion_usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (len(PROMPT), 12)
    assert usage.prompt_tokens_details.cached_tokens == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_read_as_what_it_is(load, network, dtype):
    engine = load("llama")
    rounded = embedded(network, PROMPT, 12)
    values = network.get_input_embeddings()(torch.tensor(PROMPT)).detach().to(dtype).float()
    rounded.prompt_embeds.CopyFrom(tensor_of(values))
    assert engine.answer(embedded(network, PROMPT, 12, dtype)).tokens == engine.answer(rounded).tokens


def test_chunks_crowds_and_preemption_change_nothing(load, network, expected):
    engine = load("llama", max_num_batched_tokens=7, max_num_seqs=5, block_size=4, num_kv_blocks=16)
    lengths = (9, 1, 17, 20, 14)
    contexts = []
    for i, prompt in enumerate(prompts(lengths)):
        contexts.append(engine.add(embedded(network, prompt, 14) if i % 2 else greedy(prompt, 14)))
        engine.step()
    engine.run()
    assert engine.core.scheduler.num_preemptions > 0
    for context, prompt in zip(contexts, prompts(lengths), strict=True):
        assert engine.answers[context].tokens[0] == expected("llama", prompt, 14)


def test_nobody_finds_them_in_the_prefix_cache(load, network, expected):
    engine = load("llama")
    first, second = prompts((40, 41))
    assert engine.answer(embedded(network, first, 4)).tokens[0] == expected("llama", first, 4)
    assert engine.core.scheduler.pool.num_cached == 0
    assert engine.answer(embedded(network, second[:40], 4)).tokens[0] == expected("llama", second[:40], 4)
    assert engine.answer(greedy([0] * 40, 4)).tokens[0] == expected("llama", [0] * 40, 4)


def test_several_choices_beams_and_resumed_parts_read_them(load, network, expected):
    engine = load("llama")
    wanted = expected("llama", PROMPT, 12)
    several = engine.answer(embedded(network, PROMPT, 12, n=2))
    assert dict(several.tokens) == {0: wanted, 1: wanted}
    resumed = embedded(network, PROMPT, 12)
    resumed.resume.choices.add(index=0, generated_token_ids=wanted[:5])
    assert engine.answer(resumed).tokens[0] == wanted[5:]
    beams, ids = embedded(network, PROMPT, 12, n=2), greedy(PROMPT, 12, n=2)
    for request in (beams, ids):
        request.sampling_options.use_beam_search = True
    assert engine.answer(beams).tokens == engine.answer(ids).tokens


def test_their_places_count_neither_as_repeated_nor_as_thinking(load, network, expected):
    engine = load("llama", thinking_token_ids=(0, 1))
    request = embedded(network, PROMPT, 6)
    request.sampling_options.logit_bias.add(token_id=0, bias=100)
    request.sampling_options.logit_bias.add(token_id=5, bias=50)
    request.sampling_options.repetition_penalty = 10.0
    assert engine.answer(request).tokens[0][:2] == [0, 5], "only what was generated is repeated"
    request.sampling_options.logit_bias[0].bias = -100
    first = engine.answer(request)
    assert first.terminals[-1].completion_usage.completion_tokens_details.reasoning_tokens == 0


def changed(request: pb.PreprocessedRequest, **fields: object) -> pb.PreprocessedRequest:
    tensor = request.prompt_embeds
    for name, value in fields.items():
        if name == "shape":
            del tensor.shape[:]
            tensor.shape.extend(value)
        else:
            setattr(tensor, name, value)
    return request


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"data_type": pb.DATA_TYPE_UNSPECIFIED}, "data_type"),
        ({"data_type": pb.DATA_TYPE_UINT8}, "data_type"),
        ({"data_type": pb.DATA_TYPE_FLOAT16}, "data"),
        ({"shape": []}, "shape"),
        ({"shape": [21 * 32]}, "shape"),
        ({"shape": [0, 32]}, "shape"),
        ({"shape": [42, 16]}, "shape"),
        ({"shape": [2**63, 32]}, "data"),
        ({"shape": [20, 32]}, "data"),
        ({"data": b""}, "data"),
    ],
)
def test_what_is_no_matrix_of_the_models_width_is_refused(load, network, fields, field):
    with pytest.raises(InvalidRequest) as caught:
        load("llama").answer(changed(embedded(network, PROMPT, 2), **fields))
    assert caught.value.field == f"prompt_embeds.{field}"


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_refused(load, dtype, poison):
    values = torch.zeros(3, 32, dtype=dtype)
    request = greedy([], 2)
    request.prompt_embeds.CopyFrom(tensor_of(values + torch.finfo(dtype).max))
    engine = load("llama")
    engine.add(request)
    values[2, 7] = poison
    request.prompt_embeds.CopyFrom(tensor_of(values))
    with pytest.raises(InvalidRequest) as caught:
        engine.answer(request)
    assert caught.value.field == "prompt_embeds.data"


def test_too_many_rows_and_both_kinds_of_prompt_are_refused(load, network):
    engine = load("llama")
    long, both, scored = (embedded(network, PROMPT, 2) for _ in range(3))
    long.prompt_embeds.CopyFrom(tensor_of(torch.zeros(256, 32)))
    both.token_ids.append(3)
    scored.output_options.prompt_logprobs = 0
    fields = []
    for request in (long, both, scored):
        with pytest.raises(EngineError) as caught:
            engine.answer(request)
        fields.append(caught.value.field)
    assert fields == ["prompt_embeds.shape", "prompt_embeds", "output_options.prompt_logprobs"]


@pytest.fixture
def generic(tmp_path: Path) -> Callable[[str], tuple[CoreUnderTest, transformers.PreTrainedModel]]:
    """A family that transformers runs: the engine and the oracle."""

    def make(model_type: str) -> tuple[CoreUnderTest, transformers.PreTrainedModel]:
        network = save_wide(tmp_path, model_type)
        options = TorchEngineOptions(
            model=str(tmp_path), device="cpu", dtype="float32", num_threads=1, max_num_batched_tokens=9,
            max_num_seqs=4, block_size=4, max_model_len=40,
        )  # fmt: skip
        return CoreUnderTest(load_engine(options, lambda phase, done: None)), network

    return make


@pytest.mark.parametrize("model_type", ["gpt2", "gemma2", "gemma3_text", "opt", "gpt_neox"])
def test_networks_of_transformers_read_embeddings_and_score_prompts(model_type, generic, capfd):
    engine, network = generic(model_type)
    ids = greedy(PROMPT, 8)
    ids.output_options.prompt_logprobs = 2
    answer = engine.answer(ids)
    with torch.inference_mode():
        scores = network(torch.tensor([PROMPT])).logits[0, :-1].log_softmax(-1)
    found = torch.tensor(answer.outputs[0].prompt_logprobs.logprobs.top_logprobs)
    assert found.allclose(scores.topk(2).values.flatten(), atol=1e-2)
    assert engine.answer(embedded(network, PROMPT, 8)).tokens == answer.tokens


def test_a_network_that_needs_the_ids_refuses_embeddings(generic, capfd):
    engine, network = generic("gemma3n_text")
    assert engine.loaded.embedding_width is None
    with pytest.raises(Unsupported) as caught:
        engine.answer(embedded(network, PROMPT, 2))
    assert caught.value.field == "prompt_embeds"
