"""The shape of a decoder-only model of our own code, read from config.json.

Covers the Llama, Mistral, Qwen2 and Qwen3 families; `is_native` tells them from all others. Every
value is checked here, so that the model code can trust it. Knows nothing about torch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isfinite
from typing import Protocol

from enginewire.torch_engine.folder.folder import Json, ModelFolder, ModelLoadError

ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
ENCODERS = (
    "albert",
    "bert",
    "camembert",
    "distilbert",
    "electra",
    "modernbert",
    "mpnet",
    "nomic_bert",
    "roberta",
    "xlm-roberta",
)
"""Values of `model_type`, run by transformers; each is compared with it by the tests."""
ROPE_TYPES = ("default", "linear", "llama3", "yarn")
DTYPES = ("float32", "bfloat16", "float16")
MAX_SIZE = 2**24
"""Above any real dimension: a size beyond it is a broken file, not a model."""


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary embedding: the base `theta` and, per `kind`, the numbers of its scaling."""

    kind: str = "default"
    theta: float = 10_000.0
    scaling: dict[str, float] = field(default_factory=dict)


class ServedConfig(Protocol):
    """What the engine must know of any model, ours or not."""

    @property
    def vocab_size(self) -> int:
        """Token ids are below it."""
        ...

    @property
    def max_position(self) -> int:
        """The longest context in tokens."""
        ...

    @property
    def kv_sizes(self) -> tuple[int, ...]:
        """How many numbers each key and each value of a token has, in all layers."""
        ...

    @property
    def windows(self) -> tuple[int | None, ...]:
        """The sliding window of each attention layer in tokens, None for full attention."""
        ...


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes in elements. `windows` holds one sliding window per layer, None for full attention."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    max_position: int
    rope: Rope
    windows: tuple[int | None, ...]
    tied_embeddings: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    dtype: str

    @property
    def num_layers(self) -> int:
        """Decoder layers."""
        return len(self.windows)

    @property
    def kv_sizes(self) -> tuple[int, ...]:
        """How many numbers each key and each value of a token has, in all layers."""
        return (self.head_dim,) * (2 * self.num_layers * self.num_kv_heads)


def is_native(folder: ModelFolder) -> bool:
    """True for the architectures that `read_model_config` covers."""
    return _architecture_name(_fields(folder)) in ARCHITECTURES


def read_dtype(folder: ModelFolder) -> str:
    """The dtype of the weights, float32 when the folder does not tell."""
    return _dtype(_fields(folder))


def read_model_config(folder: ModelFolder) -> ModelConfig:
    """Check and translate config.json; raises ModelLoadError that names the field."""
    fields = _fields(folder)
    architecture = _architecture(fields)
    num_heads = fields.size("num_attention_heads")
    hidden_size = fields.size("hidden_size")
    is_qwen2 = architecture == "Qwen2ForCausalLM"
    may_bias = architecture in ("LlamaForCausalLM", "Qwen3ForCausalLM")
    attention_bias = may_bias and fields.flag("attention_bias", False)
    config = ModelConfig(
        architecture=architecture,
        vocab_size=fields.size("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=fields.size("intermediate_size"),
        num_heads=num_heads,
        num_kv_heads=fields.size("num_key_value_heads", num_heads),
        head_dim=fields.size("head_dim", _default_head_dim(architecture, hidden_size, num_heads)),
        norm_eps=fields.number("rms_norm_eps", 1e-6),
        max_position=fields.size("max_position_embeddings"),
        rope=_rope(fields),
        windows=_windows(fields, architecture),
        tied_embeddings=fields.flag("tie_word_embeddings", False),
        qkv_bias=is_qwen2 or attention_bias,
        output_bias=attention_bias,
        mlp_bias=architecture == "LlamaForCausalLM" and fields.flag("mlp_bias", False),
        qk_norm=architecture == "Qwen3ForCausalLM",
        dtype=_dtype(fields),
    )
    if config.num_heads % config.num_kv_heads:
        raise fields.error("num_key_value_heads", "must divide num_attention_heads")
    if config.head_dim % 2:
        raise fields.error("head_dim", "must be even")
    return config


@dataclass(frozen=True, slots=True)
class _Fields:
    """A JSON object with checked access; `where` begins every error."""

    values: Json
    where: str

    def error(self, name: str, problem: str) -> ModelLoadError:
        return ModelLoadError(f"{self.where}: {name} {problem}")

    def get(self, name: str) -> object | None:
        return self.values.get(name)

    def size(self, name: str, default: int | None = None) -> int:
        value = self.get(name)
        value = default if value is None else value
        if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= MAX_SIZE:
            raise self.error(name, f"must be an integer from 1 to {MAX_SIZE}, not {value!r:.40}")
        return value

    def number(self, name: str, default: float) -> float:
        value = self.get(name)
        value = default if value is None else value
        if not isinstance(value, int | float) or isinstance(value, bool) or not isfinite(value):
            raise self.error(name, f"must be a finite number, not {value!r:.40}")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        value = self.get(name)
        return default if value is None else bool(value)

    def text(self, name: str, default: str) -> str:
        value = self.get(name)
        return value if isinstance(value, str) else default

    def nested(self, name: str) -> _Fields:
        value = self.get(name)
        return _Fields(value if isinstance(value, dict) else {}, f"{self.where}: {name}")


def _fields(folder: ModelFolder) -> _Fields:
    return _Fields(folder.config, str(folder.config_file))


def _architecture_name(fields: _Fields) -> object | None:
    names = fields.get("architectures")
    return names[0] if isinstance(names, list) and names else None


def _architecture(fields: _Fields) -> str:
    name = _architecture_name(fields)
    if name not in ARCHITECTURES:
        supported = ", ".join(ARCHITECTURES)
        raise fields.error("architectures", f"{name!r:.60} is not supported (supported: {supported})")
    if fields.text("hidden_act", "silu") != "silu":
        raise fields.error("hidden_act", "must be silu")
    return str(name)


def _default_head_dim(architecture: str, hidden_size: int, num_heads: int) -> int:
    return 128 if architecture == "Qwen3ForCausalLM" else hidden_size // num_heads


def _dtype(fields: _Fields) -> str:
    """transformers 5 writes `dtype`, older versions `torch_dtype`; float32 when neither is known."""
    name = fields.text("dtype", fields.text("torch_dtype", "float32"))
    return name if name in DTYPES else "float32"


def _rope(fields: _Fields) -> Rope:
    """transformers 5 writes `rope_parameters`, older versions `rope_scaling` and `rope_theta`."""
    nested = fields.nested("rope_parameters" if fields.get("rope_parameters") else "rope_scaling")
    kind = nested.text("rope_type", nested.text("type", "default"))
    if kind not in ROPE_TYPES:
        raise nested.error("rope_type", f"{kind!r:.40} is not supported (supported: {', '.join(ROPE_TYPES)})")
    if nested.number("partial_rotary_factor", fields.number("partial_rotary_factor", 1.0)) != 1.0:
        raise nested.error("partial_rotary_factor", "is not supported")
    numbers = {name: value for name, value in nested.values.items() if isinstance(value, int | float)}
    scaling = {name: float(value) for name, value in numbers.items() if isfinite(value)}
    if kind != "default" and scaling.get("factor", 0.0) <= 0.0:
        raise nested.error("factor", "must be positive")
    scaling.setdefault("original_max_position_embeddings", fields.size("max_position_embeddings"))
    theta = nested.number("rope_theta", fields.number("rope_theta", 10_000.0))
    if theta <= 0.0:
        raise nested.error("rope_theta", "must be positive")
    return Rope(kind, theta, scaling)


def _windows(fields: _Fields, architecture: str) -> tuple[int | None, ...]:
    num_layers = fields.size("num_hidden_layers")
    window = _window(fields, architecture)
    types = fields.get("layer_types")
    if isinstance(types, list) and types:
        if len(types) != num_layers or not set(types) <= {"full_attention", "sliding_attention"}:
            raise fields.error("layer_types", "must name full_attention or sliding_attention per layer")
        return tuple(window if kind == "sliding_attention" else None for kind in types)
    first = 0
    if architecture.startswith("Qwen") and window is not None:
        first = int(fields.number("max_window_layers", 28))
    return tuple(window if layer >= first else None for layer in range(num_layers))


def _window(fields: _Fields, architecture: str) -> int | None:
    """Llama has none; Qwen switches it by a flag, Mistral by null. Absent means 4096 to both."""
    if architecture == "LlamaForCausalLM" or fields.values.get("sliding_window", 4096) is None:
        return None
    if architecture.startswith("Qwen") and not fields.flag("use_sliding_window", False):
        return None
    return fields.size("sliding_window", 4096)
