"""What weights of fewer bits cost in accuracy: the distributions of the next token beside those of float32.

    python benchmarks/model/quantized.py [--model FOLDER] [--tokens 64]

The model is transformers', so that nothing but the projections differs: those of the layers, the head, or
both are the ones that `--quantization int8` has; or the weights of both went through a kind of GGUF, by the
package `gguf`, and are floats again, as the engine reads them. Each text is a question and what the float32
model answers.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from gguf import GGMLQuantizationType as Kind
from gguf.quants import dequantize, quantize
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, logging

from enginewire.server.demo_model import PATH
from enginewire.torch_engine.layers.linear import Int8Linear

QUESTIONS = (
    "What does Drain do?",
    "What is Enginewire?",
    "How do I abort a request?",
    "What is a stop string?",
    "Which RPCs are there?",
    "What is the prefix cache?",
    "Hello there",
    "1 + 1?",
)


KINDS = (Kind.Q8_0, Kind.Q5_1, Kind.Q5_0, Kind.Q4_1, Kind.Q4_0)
"""Those of 4 bits and more that the package makes; others it only reads."""


class Rounded(torch.nn.Module):
    """A projection of transformers with weights, and inputs, of 8 bits."""

    def __init__(self, original: torch.nn.Linear) -> None:
        super().__init__()
        self._linear = Int8Linear(original.weight.detach(), original.bias)

    def forward(self, value: Tensor) -> Tensor:
        """Of [batch, tokens, inputs]."""
        return self._linear(value.flatten(0, 1)).unflatten(0, value.shape[:2])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", type=Path, default=PATH)
    parser.add_argument("--tokens", type=int, default=64, help="of each answer")
    options = parser.parse_args()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    exact = load(options.model)
    texts = [answered(exact, ids, options.tokens) for ids in questions(options.model)]
    for name, of_layers, of_head in (("layers", True, False), ("head", False, True), ("both", True, True)):
        rounded = load(options.model)
        change(rounded, Rounded, of_layers=of_layers, of_head=of_head)
        print(f"int8, {name:6} {compared(exact, rounded, texts)}")
    for kind in KINDS:
        rounded = load(options.model)
        change(rounded, partial(through, kind))
        print(f"GGUF, {kind.name:6} {compared(exact, rounded, texts)}")


def load(folder: Path) -> AutoModelForCausalLM:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def questions(folder: Path) -> list[Tensor]:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return [tokenizer(question, return_tensors="pt").input_ids for question in QUESTIONS]


@torch.no_grad()
def answered(model: AutoModelForCausalLM, ids: Tensor, num_tokens: int) -> Tensor:
    return model.generate(ids, max_new_tokens=num_tokens, do_sample=False)


def change(
    model: AutoModelForCausalLM,
    changed: Callable[[torch.nn.Linear], torch.nn.Module],
    *,
    of_layers: bool = True,
    of_head: bool = True,
) -> None:
    for name, part in list(model.named_modules()):
        if isinstance(part, torch.nn.Linear) and (of_head if name == "lm_head" else of_layers):
            model.set_submodule(name, changed(part))


@torch.no_grad()
def through(kind: Kind, projection: torch.nn.Linear) -> torch.nn.Linear:
    """The projection with weights as they come out of a file of this kind."""
    made = torch.nn.Linear(projection.in_features, projection.out_features, projection.bias is not None)
    made.weight.copy_(torch.from_numpy(dequantize(quantize(projection.weight.numpy(), kind), kind)))
    if projection.bias is not None:
        made.bias.copy_(projection.bias)
    return made


@torch.no_grad()
def compared(exact: AutoModelForCausalLM, rounded: AutoModelForCausalLM, texts: list[Tensor]) -> str:
    divergences, same = [], []
    for ids in texts:
        wanted, found = (model(ids).logits[0].log_softmax(-1) for model in (exact, rounded))
        divergences.append((wanted.exp() * (wanted - found)).sum(-1))
        same.append(wanted.argmax(-1) == found.argmax(-1))
    divergence, agreed = torch.cat(divergences), torch.cat(same)
    mean, worst = float(divergence.mean()), float(divergence.max())
    return f"KL {mean:.1e} nats, at worst {worst:.1e}; {agreed.sum()} of {len(agreed)} first choices the same"


if __name__ == "__main__":
    main()
