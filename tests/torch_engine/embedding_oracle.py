"""Vectors by transformers alone: one input at a time, no batch, no cache."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch
import transformers


@torch.inference_mode()
def vectors_of(
    network: transformers.PreTrainedModel, inputs: Seq[list[int]], pooling: str, *, normalize: bool = True
) -> torch.Tensor:
    """[inputs, width] from the last hidden states of `AutoModel`."""
    states = [network(input_ids=torch.tensor([each])).last_hidden_state[0] for each in inputs]
    chosen = {"last": lambda each: each[-1], "mean": lambda each: each.mean(0), "cls": lambda each: each[0]}
    vectors = torch.stack([chosen[pooling](each) for each in states])
    return torch.nn.functional.normalize(vectors, dim=1) if normalize else vectors
