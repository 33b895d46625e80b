"""What fewer bits cost in accuracy: the distributions of the next token beside those of float32.

    python benchmarks/model/quantized.py [--model FOLDER | --shape 15m|110m|500m] [--tokens 64]
        [--llama VENV/lib/python3.11/site-packages/xllamacpp/xllamacpp.abi3.so]

The model is transformers', so that nothing but the projections differs: those of the layers, the head, or
both are the ones that `--quantization int8` has, or int4, whose head has 8 bits; or the weights of both went
through a kind of GGUF, by the package `gguf`, and are floats again, as the engine reads them. For kinds of 4
bits it also says how far from such a file the engine is that serves it with int4. For the KV cache it is the
torch engine, with a `--kv-cache-dtype` and without. Each text is a question and what the float32 model
answers; with `--shape`, whose weights are random, random tokens.

Kinds that end in _K are made by llama.cpp, of which --llama is the library, for weights with whole blocks of
256. The package `gguf` only reads them.
"""

from __future__ import annotations

import argparse
import copy
import ctypes
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as Kind
from gguf.quants import dequantize, quant_shape_to_byte_shape, quantize
from numpy.typing import NDArray
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, logging
from workloads import make_model, static_batch

from enginewire.server.demo_model import PATH
from enginewire.torch_engine.layers.attention import Span, plan_attention
from enginewire.torch_engine.layers.flat_inputs import FlatInputs
from enginewire.torch_engine.layers.int4.linear import Int4Linear
from enginewire.torch_engine.layers.linear import Int8Linear, MakeLinear
from enginewire.torch_engine.loading.load import load_engine
from enginewire.torch_engine.options import SMALLER_CACHES, TorchEngineOptions

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
OF_4_BITS = (Kind.Q4_0, Kind.Q4_1, Kind.Q4_K)
LLAMAS_KINDS = (Kind.Q6_K, Kind.Q5_K, Kind.Q4_K)
Quantizer = Callable[[NDArray[numpy.float32], Kind], NDArray[numpy.uint8]]


class Rounded(torch.nn.Module):
    """A projection of transformers with weights of 8 or 4 bits, and inputs of 8."""

    def __init__(self, make: MakeLinear, original: torch.nn.Linear) -> None:
        super().__init__()
        self._linear = make(original.weight.detach(), original.bias)

    def forward(self, value: Tensor) -> Tensor:
        """Of [batch, tokens, inputs]."""
        return self._linear(value.flatten(0, 1)).unflatten(0, value.shape[:2])


class Served:
    """Our engine with such a KV cache, called as a model of transformers is."""

    def __init__(self, folder: Path, kv_cache_dtype: str) -> None:
        options = TorchEngineOptions(
            str(folder), device="cpu", dtype="float32", kv_cache_dtype=kv_cache_dtype
        )
        self._runner = load_engine(options, lambda phase, done: None).core._runner

    @torch.inference_mode()
    def __call__(self, ids: Tensor) -> SimpleNamespace:
        """The logits [1, tokens, vocab] of one text."""
        model, cache, places = self._runner.model, self._runner.cache, torch.arange(ids.shape[1])
        span = Span(len(places), len(places), list(range(-(-len(places) // cache.block_size))))
        windows = frozenset(model.config.windows)
        plan = plan_attention([span], cache.block_size, windows, model.embedding, model.reading)
        return SimpleNamespace(logits=model.forward(FlatInputs(ids[0], places, places, plan), cache)[None])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", type=Path, default=PATH)
    parser.add_argument("--shape", choices=["15m", "110m", "500m"], help="random weights instead of a model")
    parser.add_argument("--llama", type=Path, help="the library of llama.cpp, for kinds that end in _K")
    parser.add_argument("--tokens", type=int, default=64, help="of each answer")
    options = parser.parse_args()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder:
        if options.shape:
            options.model = Path(folder)
            make_model(options.model, options.shape, "float32")
            jobs = static_batch(len(QUESTIONS), options.tokens, 0)
            compare(options, [torch.tensor([job.prompt]) for job in jobs])
        else:
            exact = load(options.model)
            compare(options, [answered(exact, ids, options.tokens) for ids in questions(options.model)])


def compare(options: argparse.Namespace, texts: list[Tensor]) -> None:
    exact = load(options.model)
    for name, of_layers, of_head in (("layers", True, False), ("head", False, True), ("both", True, True)):
        rounded = load(options.model)
        change(rounded, partial(Rounded, Int8Linear), of_layers=of_layers, of_head=of_head)
        print(f"int8, {name:6} {compared(exact, rounded, texts)}", flush=True)
    for name, of_head in (("layers", False), ("both", True)):
        rounded = load(options.model)
        serve_int4(rounded, of_head=of_head)
        print(f"int4, {name:6} {compared(exact, rounded, texts)}", flush=True)
    plain = Served(options.model, "auto")
    for name in SMALLER_CACHES:
        print(f"KV cache, {name:19} {compared(plain, Served(options.model, name), texts)}", flush=True)
    makers: list[tuple[Kind, Quantizer]] = [(kind, quantize) for kind in KINDS]
    if options.llama:
        makers += [(kind, llamas(options.llama)) for kind in LLAMAS_KINDS]
    for kind, make in makers:
        rounded = load(options.model)
        change(rounded, partial(through, kind, make))
        print(f"GGUF, {kind.name:6} {compared(exact, rounded, texts)}", flush=True)
        if kind in OF_4_BITS:
            again = copy.deepcopy(rounded)
            serve_int4(again)
            print(f"{kind.name} as int4: {compared(rounded, again, texts)} beside the file", flush=True)
            print(f"{kind.name} as int4: {compared(exact, again, texts)}", flush=True)


def llamas(library: Path) -> Quantizer:
    """What llama.cpp makes of the weights of one projection, rows of bytes."""
    chunk = ctypes.CDLL(str(library)).ggml_quantize_chunk
    pointer, size = ctypes.c_void_p, ctypes.c_int64
    chunk.argtypes, chunk.restype = (
        (ctypes.c_int, pointer, pointer, size, size, size, pointer),
        ctypes.c_size_t,
    )

    def made(weight: NDArray[numpy.float32], kind: Kind) -> NDArray[numpy.uint8]:
        assert weight.shape[1] % GGML_QUANT_SIZES[kind][0] == 0, "only whole blocks"
        weight = numpy.ascontiguousarray(weight)
        rows = numpy.empty(quant_shape_to_byte_shape(weight.shape, kind), numpy.uint8)
        written = chunk(kind, weight.ctypes.data, rows.ctypes.data, 0, *weight.shape, None)
        assert written == rows.nbytes
        return rows

    return made


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


def serve_int4(model: AutoModelForCausalLM, *, of_head: bool = True) -> None:
    """As the engine does it: the head has 8 bits."""
    change(model, partial(Rounded, Int4Linear), of_head=False)
    change(model, partial(Rounded, Int8Linear), of_layers=False, of_head=of_head)


@torch.no_grad()
def through(kind: Kind, make: Quantizer, projection: torch.nn.Linear) -> torch.nn.Linear:
    """The projection with weights as they come out of a file of this kind."""
    made = torch.nn.Linear(projection.in_features, projection.out_features, projection.bias is not None)
    made.weight.copy_(torch.from_numpy(dequantize(make(projection.weight.numpy(), kind), kind)))
    if projection.bias is not None:
        made.bias.copy_(projection.bias)
    return made


@torch.no_grad()
def compared(
    exact: AutoModelForCausalLM | Served, rounded: AutoModelForCausalLM | Served, texts: list[Tensor]
) -> str:
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
