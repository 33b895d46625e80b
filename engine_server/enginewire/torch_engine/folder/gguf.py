"""A GGUF file as a model folder: its metadata say what config.json would, its tensors have their usual names.

The package `gguf` turns weights of any of its types into floats, one tensor at a time; transformers makes the
tokenizer. Covers the families of our own code. Knows nothing about layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import pi
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from enginewire.server.engines.interface import Tokenizer
from enginewire.torch_engine.folder.folder import Json, ModelFolder, ModelLoadError, tokenizer_in

if TYPE_CHECKING:
    from gguf import GGUFReader, ReaderTensor

FAMILIES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
WHOLE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
PARTS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
FACTORS = "rope_freqs.weight"
"""By how much Llama 3 slows each rotation: the outcome of its scaling, whose numbers are not in the file."""
STORED_AS = {"F32": "float32", "F16": "float16"}
"""The dtype of weights of a type; that of all others is bfloat16."""
NAME = "model.gguf"
ENDS = ("eos", "eot", "eom")
BROKEN = (ValueError, LookupError, TypeError, AttributeError, OverflowError, NotImplementedError, OSError)
"""What the library raises over a file that is no GGUF file, or half of one."""


@dataclass(frozen=True, slots=True)
class GgufModel(ModelFolder):
    """A file that is there and is one."""

    tensors: GgufTensors

    @property
    def config_file(self) -> Path:
        """The file itself."""
        return self.path

    def weight_files(self) -> list[Path]:
        """The file."""
        return [self.path]

    def tokenizer(self) -> Tokenizer | None:
        """What transformers makes of the file; raises ModelLoadError."""
        from transformers import AutoTokenizer

        try:
            with TemporaryDirectory() as alone, TemporaryDirectory() as written:
                # Whatever lies beside the file is not about it.
                Path(alone, NAME).symlink_to(self.path.resolve())
                made = AutoTokenizer.from_pretrained(
                    alone, gguf_file=NAME, local_files_only=True, trust_remote_code=False
                )
                made.save_pretrained(written)
                return tokenizer_in(Path(written))
        except Exception as error:  # tokenizers raises nothing less general
            raise ModelLoadError(f"{self.path}: transformers cannot read its tokenizer ({error})") from error


class GgufTensors:
    """The tensors of a file by the names that Hugging Face gives them."""

    def __init__(self, tensors: dict[str, ReaderTensor], rows_of: Callable[[str], int | None]) -> None:
        """`rows_of` is how many heads the rows of a tensor belong to, if they are those of llama.cpp."""
        self._tensors, self._rows_of = tensors, rows_of

    def keys(self) -> list[str]:
        """Names of the tensors."""
        return list(self._tensors)

    def stored(self) -> Iterable[tuple[str, ReaderTensor]]:
        """Each of them as it lies in the file."""
        return self._tensors.items()

    def get_slice(self, name: str) -> Stored:
        """What the header says about a tensor."""
        return Stored(self._tensors[name])

    def get_tensor(self, name: str) -> Tensor:
        """A tensor in float32; raises ModelLoadError for a type that has no floats."""
        from gguf import dequantize

        stored = self._tensors[name]
        try:
            values = torch.from_numpy(dequantize(stored.data, stored.tensor_type).copy())
        except BROKEN as error:
            raise ModelLoadError(
                f"{stored.name}: {stored.tensor_type.name} cannot be read ({error})"
            ) from error
        heads = self._rows_of(stored.name)
        return values if heads is None else _halves(values, heads)


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor that was not read yet."""

    tensor: ReaderTensor

    def get_shape(self) -> list[int]:
        """Sizes of its dimensions, which the file has the other way round."""
        return [int(size) for size in reversed(self.tensor.shape)]


def open_gguf(path: Path) -> GgufModel:
    """Read all of a file but its weights; raises ModelLoadError."""
    try:
        from gguf import GGUFReader
    except ImportError as error:
        raise ModelLoadError(f"{path}: needs the package gguf: pip install 'enginewire[gguf]'") from error
    try:
        reader = GGUFReader(path)
    except BROKEN as error:
        raise ModelLoadError(f"{path}: not a usable GGUF file ({error})") from error
    return _Metadata(path, reader).model()


@dataclass(frozen=True, slots=True)
class _Metadata:
    """What the file says of itself."""

    path: Path
    reader: GGUFReader

    def model(self) -> GgufModel:
        tensors = {tensor.name: tensor for tensor in self.reader.tensors}
        named = {name: tensor for tensor in self.reader.tensors if (name := _name(tensor.name))}
        config = self.config(tensors)
        rows_of = self.heads if self.architecture() == "llama" else _none
        return GgufModel(self.path, config, self.generation(), GgufTensors(named, rows_of))

    def whole(self, key: str) -> object | None:
        """A value by its full name."""
        field = self.reader.get_field(key)
        found: object | None = None if field is None else field.contents()
        return found

    def get(self, key: str) -> object | None:
        """A value of the architecture."""
        return self.whole(f"{self.whole('general.architecture')}.{key}")

    def refuse(self, what: str) -> ModelLoadError:
        return ModelLoadError(f"{self.path}: {what}; llama.cpp's server may run it: --upstream http://…")

    def architecture(self) -> str:
        name = self.whole("general.architecture")
        if name not in FAMILIES:
            raise self.refuse(f"general.architecture {name!r:.60} is not one of {', '.join(FAMILIES)}")
        if self.get("expert_count"):
            raise self.refuse("a mixture of experts is not supported")
        return str(name)

    def config(self, tensors: dict[str, ReaderTensor]) -> Json:
        """The fields of config.json; what is missing or wrong is found where those are read."""
        family, window = FAMILIES[self.architecture()], self.get("attention.sliding_window")
        if window and family != FAMILIES["llama"]:
            raise self.refuse("attention.sliding_window is not supported")
        embedding = tensors.get("token_embd.weight")
        if embedding is None:
            raise self.refuse("there is no token_embd.weight")
        head_dim = self.get("attention.key_length")
        if head_dim is not None and self.get("rope.dimension_count") not in (None, head_dim):
            raise self.refuse("rope.dimension_count is not attention.key_length")
        found = {
            "architectures": ["MistralForCausalLM" if window else family],
            "vocab_size": int(embedding.shape[-1]),
            "hidden_size": self.get("embedding_length"),
            "intermediate_size": self.get("feed_forward_length"),
            "num_hidden_layers": self.get("block_count"),
            "num_attention_heads": self.get("attention.head_count"),
            "num_key_value_heads": self.get("attention.head_count_kv"),
            "head_dim": head_dim or self.get("rope.dimension_count"),
            "rms_norm_eps": self.get("attention.layer_norm_rms_epsilon"),
            "max_position_embeddings": self.get("context_length"),
            "rope_theta": self.get("rope.freq_base"),
            "rope_scaling": self.rope_scaling(tensors),
            "sliding_window": window,
            "attention_bias": "blk.0.attn_output.bias" in tensors,
            "mlp_bias": "blk.0.ffn_down.bias" in tensors,
            "tie_word_embeddings": "output.weight" not in tensors,
            "dtype": STORED_AS.get(_type(tensors.get("blk.0.attn_q.weight", embedding)), "bfloat16"),
        }
        return {name: value for name, value in found.items() if value is not None}

    def generation(self) -> Json:
        """What generation_config.json would say."""
        ids = [self.whole(f"tokenizer.ggml.{end}_token_id") for end in ENDS]
        return {"eos_token_id": [found for found in dict.fromkeys(ids) if found is not None]}

    def heads(self, name: str) -> int | None:
        """Of a tensor whose rows lie as llama.cpp rotates them."""
        part = name.split(".")[-2]
        key = {"attn_q": "attention.head_count", "attn_k": "attention.head_count_kv"}.get(part)
        if key is None:
            return None
        found = self.get(key) or self.get("attention.head_count")
        assert isinstance(found, int), "the configuration was read before"
        return found

    def rope_scaling(self, tensors: dict[str, ReaderTensor]) -> Json | None:
        factors, kind = tensors.get(FACTORS), self.get("rope.scaling.type")
        if factors is not None:
            return self.llama3(factors.data.tolist())
        if kind in (None, "none"):
            return None
        scaling = {"rope_type": kind, "factor": self.get("rope.scaling.factor")}
        original = self.get("rope.scaling.original_context_length")
        return scaling if original is None else {**scaling, "original_max_position_embeddings": original}

    def llama3(self, factors: list[float]) -> Json:
        """The numbers that lead to these factors; raises ModelLoadError when they are not Llama's own."""
        theta = self.get("rope.freq_base")
        scaling = {"factor": max(factors), "low_freq_factor": 1.0, "high_freq_factor": 4.0}
        scaling["original_max_position_embeddings"] = 8192
        base = theta if isinstance(theta, float) else 10_000.0
        waves = [2 * pi * base ** (place / len(factors)) for place in range(len(factors))]
        meant = [_slowed(wave, **scaling) for wave in waves]
        if any(abs(found - right) > 1e-3 * right for found, right in zip(factors, meant, strict=True)):
            raise self.refuse(f"{FACTORS} is none of Llama's scalings")
        return {"rope_type": "llama3", **scaling}


def _slowed(
    wave: float,
    factor: float,
    low_freq_factor: float,
    high_freq_factor: float,
    original_max_position_embeddings: float,
) -> float:
    """How many times slower Llama 3 rotates what turns once in `wave` tokens."""
    turns = original_max_position_embeddings / wave
    share = (turns - low_freq_factor) / (high_freq_factor - low_freq_factor)
    share = min(1.0, max(0.0, share))
    return 1 / ((1 - share) / factor + share)


def _name(name: str) -> str | None:
    """What Hugging Face calls a tensor; None for one that it does not have."""
    stem, _, last = name.rpartition(".")
    if stem in WHOLE:
        return f"{WHOLE[stem]}.{last}"
    match stem.split("."):
        case ["blk", layer, part] if part in PARTS:
            return f"model.layers.{layer}.{PARTS[part]}.{last}"
    return None


def _type(tensor: ReaderTensor) -> str:
    return str(tensor.tensor_type.name)


def _none(name: str) -> None:
    """No tensor has its rows in an order of its own."""


def _halves(values: Tensor, heads: int) -> Tensor:
    """Rows that are rotated with each other lie side by side in llama.cpp, half a head apart here."""
    pairs = values.view(heads, -1, 2, *values.shape[1:])
    return pairs.transpose(1, 2).reshape(values.shape)
