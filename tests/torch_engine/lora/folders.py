"""Random adapters as peft writes them, and peft's own model as the oracle."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Sequence as Seq
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import transformers
from safetensors.torch import load_file, save_file

from enginewire.torch_engine.loading.warm_up import LoadedEngine
from enginewire.torch_engine.lora.config import read_files, read_lora_config
from enginewire.torch_engine.lora.weights import read_low_ranks
from enginewire.torch_engine.requests.adapter import Adapter

if TYPE_CHECKING:
    from peft import PeftModel


@contextmanager
def patient() -> Iterator[None]:
    """peft still calls what transformers has deprecated, which is no business of ours."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
ALL = (*ATTENTION, "gate_proj", "up_proj", "down_proj")


def make_adapter(
    base: Path, folder: Path, seed: int, target_modules: str | Seq[str] = ALL, r: int = 4, **options: object
) -> Path:
    """A folder with an adapter of random A and B, wide enough to change what a tiny model says."""
    torch.manual_seed(seed)
    modules = target_modules if isinstance(target_modules, str) else list(target_modules)
    with patient():
        # Takes a second, which is not for those who only collect the tests.
        from peft import LoraConfig, get_peft_model

        config = LoraConfig(r=r, target_modules=modules, task_type="CAUSAL_LM", **options)
        model = get_peft_model(transformers.AutoModelForCausalLM.from_pretrained(base), config)
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                torch.nn.init.normal_(parameter, std=0.2)
        model.save_pretrained(folder)
    return folder


def peft_model(base: Path, adapter: Path) -> PeftModel:
    """The base model with the adapter, as peft has it."""
    with patient():
        from peft import PeftModel

        return PeftModel.from_pretrained(
            transformers.AutoModelForCausalLM.from_pretrained(base), adapter
        ).eval()


def peft_greedy(base: Path, adapter: Path) -> Callable[[Seq[int], int], list[int]]:
    """Greedy output of peft's model, without stopping at EOS."""
    model = peft_model(base, adapter)
    model.generation_config.eos_token_id = None

    def generate(prompt: Seq[int], max_tokens: int) -> list[int]:
        ids = torch.tensor([list(prompt)])
        limits = {"max_new_tokens": max_tokens, "min_new_tokens": max_tokens}
        with torch.inference_mode(), patient():
            made = model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                pad_token_id=0,
                **limits,
            )
        return made[0, len(prompt) :].tolist()

    return generate


def peft_body(base: Path, adapter: Path) -> transformers.PreTrainedModel:
    """The network below the head, with the adapter in its layers."""
    body = peft_model(base, adapter).base_model.model.model
    assert isinstance(body, transformers.PreTrainedModel)
    return body


def read_adapter(loaded: LoadedEngine, folder: Path, name: str) -> Adapter:
    """The adapter as an engine holds it."""
    assert loaded.adapted is not None
    files = read_files(folder, 2**26)
    config = read_lora_config(files[0], 16)
    low_ranks = dict(read_low_ranks(files[1], config, loaded.adapted, loaded.like))
    return Adapter(name, f"digest of {name}", low_ranks)


def edit_config(folder: Path, **fields: object) -> None:
    """Change fields of adapter_config.json."""
    path = folder / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def edit_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    """Change the tensors of adapter_model.safetensors in place."""
    path = folder / "adapter_model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)
