"""Which layers of a model of transformers adapters can change, and how they are changed.

A linear layer qualifies that computes every token of the flat batch exactly once: no list of names
tells, one pass over a few tokens does. Experts, which see some tokens, and the head, which sees the
last ones, drop out by themselves. Knows nothing about requests or files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from enginewire.torch_engine.lora.projections import AdaptedProjections
from enginewire.torch_engine.models.huggingface.attention import (
    AttentionCall,
    UnsupportedAttentionError,
    attending,
)
from enginewire.torch_engine.models.huggingface.model import GenericModel

NUM_TOKENS = 19

Hook = Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]


class _Blind:
    """An attention pass in which nobody sees anything."""

    def attend(self, call: AttentionCall) -> Tensor:
        """See `AttentionPass`; the answer is zeros."""
        return call.query.new_zeros((*call.query.shape[:2], call.values.shape[2]))


def adapt(network: PreTrainedModel, model: GenericModel, adapted: AdaptedProjections) -> None:
    """Let adapters change `network`, which serves as `model`. Raises UnsupportedAttentionError."""
    layers = _layers_of_all_tokens(network, model)
    if not layers:
        raise UnsupportedAttentionError("none of its layers can be changed by adapters")
    for name, layer in layers:
        number = adapted.add([name], [layer.out_features], layer.in_features)
        layer.register_forward_hook(_changing(adapted, number))


def _changing(adapted: AdaptedProjections, number: int) -> Hook:
    def change(layer: nn.Module, inputs: tuple[Tensor, ...], product: Tensor) -> None:
        if adapted.num_rows:
            rows = product.view(-1, product.shape[-1])
            if len(rows) != adapted.num_rows:
                raise RuntimeError("a layer that adapters change did not compute every token")
            adapted.change(number, inputs[0].reshape(len(rows), -1), rows)

    return change


@torch.inference_mode()
def _layers_of_all_tokens(network: PreTrainedModel, model: GenericModel) -> list[tuple[str, nn.Linear]]:
    """Those of the model's own dtype, by name."""
    num_tokens = min(NUM_TOKENS, model.config.max_position)
    calls: Counter[nn.Module] = Counter()
    head = network.get_output_embeddings()  # type: ignore[no-untyped-call]  # a method of transformers
    layers = [
        (name, module)
        for name, module in network.named_modules()
        if type(module) is nn.Linear and module is not head and module.weight.dtype == network.dtype
    ]

    def count(layer: nn.Module, inputs: tuple[Tensor, ...], product: Tensor) -> None:
        is_whole = len(inputs) == 1 and product.numel() == num_tokens * product.shape[-1]
        calls[layer] += 1 if is_whole else 2

    hooks = [layer.register_forward_hook(count) for _, layer in layers]
    tokens = torch.arange(num_tokens, device=network.device)[None]
    # A tensor, as in `GenericModel.forward`: given a number, some models skip the other tokens early on.
    rows = {"logits_to_keep": tokens[0, -1:]} if model.selects_rows else {}
    try:
        with attending(_Blind()):
            network(
                input_ids=tokens % len(model.embedding),
                position_ids=tokens,
                use_cache=False,
                **rows,
            )
    finally:
        for hook in hooks:
            hook.remove()
    return [(name, layer) for name, layer in layers if calls[layer] == 1]
