"""What a model folder says about generation: end-of-sequence ids and sampling defaults.

Knows nothing about torch or requests.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

from enginewire import v1 as pb
from enginewire.torch_engine.folder.folder import Json, ModelFolder


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """Values for requests that leave them unset.

    An explicit `"do_sample": false` in generation_config.json means temperature 0. Without the
    file everything is off and the temperature is 1.
    """

    eos_token_ids: tuple[int, ...] = ()
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0

    def sampling(self) -> pb.SamplingDefaults:
        """Those of sampling, as the contract shows them."""
        return pb.SamplingDefaults(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
        )


def read_generation_defaults(folder: ModelFolder, vocab_size: int) -> GenerationDefaults:
    """Take what is usable; a value outside the contract's range counts as not given."""
    values = folder.generation_config
    temperature = _number(values, "temperature", 1.0, 0.0, 100.0)
    return GenerationDefaults(
        eos_token_ids=_eos(values, vocab_size) or _eos(folder.config, vocab_size),
        temperature=0.0 if values.get("do_sample") is False else temperature,
        top_k=int(_number(values, "top_k", 0, 0, vocab_size)),
        top_p=_number(values, "top_p", 1.0, 1e-6, 1.0),
        min_p=_number(values, "min_p", 0.0, 0.0, 1.0),
        repetition_penalty=_number(values, "repetition_penalty", 1.0, 1e-6, 10.0),
    )


def _eos(values: Json, vocab_size: int) -> tuple[int, ...]:
    """The field holds one id or a list of them."""
    found = values.get("eos_token_id")
    ids = found if isinstance(found, list) else [found]
    return tuple(i for i in ids if isinstance(i, int) and 0 <= i < vocab_size)


def _number(values: Json, name: str, default: float, low: float, high: float) -> float:
    value = values.get(name)
    if not isinstance(value, int | float) or not isfinite(value) or not low <= value <= high:
        return default
    return float(value)
