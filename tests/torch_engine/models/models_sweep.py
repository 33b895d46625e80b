"""Asks every causal language model of transformers whether it is served, and checks it on long texts.

`python -m tests.torch_engine.models.models_sweep [MODEL_TYPE ...]`

One line per model type: what a tiny random one is told at start, and for a served one whether its greedy
output equals `generate` of transformers behind prompts on both sides of what begins late. A type without a
tiny configuration in `huggingface/configs.py` is tried with a plain one. What cannot be built that way is
asked for by name, as a folder without weights, and not tried if that does not refuse it. Takes minutes.
"""

from __future__ import annotations

import json
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from random import Random

import torch
import transformers
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils import logging

from enginewire.torch_engine.folder.folder import ModelLoadError
from enginewire.torch_engine.loading.load import load_engine
from enginewire.torch_engine.options import TorchEngineOptions
from tests.torch_engine.models.huggingface.configs import REFUSED, SERVED, Fields, tiny_config
from tests.torch_engine.models.huggingface.test_exactness import MAX_TOKENS, assert_same, generate
from tests.torch_engine.models.huggingface.wide_models import widen
from tests.torch_engine.tiny import VOCAB, CoreUnderTest, greedy

CONTEXT = 512
LENGTHS = (1, 30, 60, 100, 127, 133, 260)
"""Beside the longest: what sparse layers gather in blocks begins to differ at 128."""
MOST_PARAMETERS = 10_000_000


def fields_of(model_type: str) -> Iterator[Fields]:
    """What to build it with, the first that works."""
    known = REFUSED[model_type].changes if model_type in REFUSED else {}
    changes = SERVED.get(model_type, known)
    yield {"max_position_embeddings": CONTEXT, **lengthened(changes)}
    yield changes
    yield {"is_decoder": True}


def lengthened(fields: Fields) -> Fields:
    """With the longer context wherever a length is named; several parts may have one each."""
    lengths = ("max_position_embeddings", "max_seq_len", "n_positions")
    return {
        name: CONTEXT if name in lengths else lengthened(value) if isinstance(value, dict) else value
        for name, value in fields.items()
    }


def refused_by_name(model_type: str, folder: Path) -> str:
    """What a folder with a default configuration and no weights is told, "" if that is about the weights."""
    try:
        config = CONFIG_MAPPING[model_type]()
    except Exception:  # noqa: BLE001  # as above
        return ""
    architecture = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[model_type]
    (folder / "config.json").write_text(
        json.dumps({**config.to_diff_dict(), "architectures": [architecture]})
    )
    (folder / "model.safetensors").write_bytes(b"")
    try:
        serve(folder)
    except ModelLoadError as error:
        return reason_of(error)
    return ""


def reason_of(error: ModelLoadError) -> str:
    return str(error).partition("is not supported ")[2]


def build(model_type: str, folder: Path) -> str:
    """Save a random model; returns why it could not be, or ""."""
    reason = ""
    for changes in fields_of(model_type):
        try:
            save(tiny_config(model_type, changes), folder)
        except Exception as error:  # noqa: BLE001  # code of any architecture: it may raise anything
            reason = reason or " ".join(f"{type(error).__name__}: {error}".split())[:200]
        else:
            return ""
    return reason


def save(config: PreTrainedConfig, folder: Path) -> None:
    """A random model with weights wide enough to keep the best two logits apart."""
    with torch.device("meta"):
        size = sum(parameter.numel() for parameter in AutoModelForCausalLM.from_config(config).parameters())
    if size > MOST_PARAMETERS:
        raise ValueError(f"{size:,} parameters")
    torch.manual_seed(5)
    network = AutoModelForCausalLM.from_config(config)
    widen(network)
    network.save_pretrained(folder)


def serve(folder: Path) -> CoreUnderTest:
    """Raises ModelLoadError."""
    options = TorchEngineOptions(
        str(folder), device="cpu", dtype="float32", num_threads=1, max_num_seqs=8, max_num_batched_tokens=61
    )
    return CoreUnderTest(load_engine(options, lambda phase, done: None))


def reference(folder: Path) -> PreTrainedModel:
    """The model as transformers runs it, which never stops by itself."""
    (architecture,) = json.loads((folder / "config.json").read_text())["architectures"]
    network = getattr(transformers, architecture).from_pretrained(folder, attn_implementation="eager").eval()
    network.generation_config.eos_token_id = None
    return network


def compare(folder: Path, engine: CoreUnderTest) -> str:
    """All lengths in one crowd against one text at a time."""
    network = reference(folder)
    random, context = Random(3), engine.loaded.context_length
    longest = context - MAX_TOKENS
    lengths = [*(length for length in LENGTHS if length < longest), longest]
    prompts = [[random.randrange(2, VOCAB) for _ in range(length)] for length in lengths]
    asked = [engine.add(greedy(prompt, MAX_TOKENS)) for prompt in prompts]
    engine.run()
    for context_, prompt in zip(asked, prompts, strict=True):
        try:
            assert_same(network, generate(network, prompt), engine.answers[context_].tokens[0])
        except AssertionError:
            return f"DIFFERS behind {len(prompt)} tokens"
    return f"equal up to {context} tokens"


def verdict(model_type: str) -> str:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if reason := build(model_type, folder):
            return refused_by_name(model_type, folder) or f"not tried: {reason}"
        try:
            engine = serve(folder)
        except ModelLoadError as error:
            return reason_of(error) or str(error)
        return compare(folder, engine)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    for model_type in sys.argv[1:] or MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        print(f"{model_type}: {verdict(model_type)}", flush=True)
