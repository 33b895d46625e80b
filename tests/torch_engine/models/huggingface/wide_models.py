"""Random models of transformers in folders, with weights wide enough to keep the best two logits apart."""

from __future__ import annotations

from pathlib import Path

import torch
import transformers

from tests.torch_engine.models.huggingface.configs import SERVED, tiny_config


def save_wide(folder: Path, model_type: str, **changes: object) -> transformers.PreTrainedModel:
    """The model of this type, saved in the folder; `changes` are to its tiny configuration."""
    torch.manual_seed(5)
    config = tiny_config(model_type, {**SERVED[model_type], **changes})
    network = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    widen(network)
    network.save_pretrained(folder)
    return network.eval()


def widen(network: torch.nn.Module) -> None:
    """Draw all weights again; those of norms stay around 1."""
    for name, parameter in network.named_parameters():
        centre = float("norm" in name.lower() and name.endswith("weight"))
        torch.nn.init.normal_(parameter, mean=centre, std=0.25)
