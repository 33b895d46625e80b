"""A prompt that comes as input embeddings instead of token ids, as checked plain bytes.

Knows nothing about torch, models or sequences.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from enginewire import v1 as pb
from enginewire.server.failures import InvalidRequest

DTYPES = {
    pb.DATA_TYPE_FLOAT32: "float32",
    pb.DATA_TYPE_FLOAT16: "float16",
    pb.DATA_TYPE_BFLOAT16: "bfloat16",
}
BITS = {"float32": ("<u4", 0x7F800000), "float16": ("<u2", 0x7C00), "bfloat16": ("<u2", 0x7F80)}
"""How the numbers look as integers, and the exponent, all of whose bits are set in what is not finite."""


@dataclass(frozen=True, slots=True)
class PromptEmbeds:
    """`num_tokens` rows of `width` finite numbers, row-major and little-endian."""

    data: bytes
    dtype: str
    num_tokens: int
    width: int

    def rows(self, begin: int, end: int) -> bytearray:
        """The bytes of some rows, to be written over as one likes."""
        row = len(self.data) // self.num_tokens
        return bytearray(memoryview(self.data)[begin * row : end * row])


def read_prompt_embeds(tensor: pb.Tensor, width: int) -> PromptEmbeds:
    """Raise InvalidRequest for anything but a finite matrix [tokens, `width`]."""
    dtype = DTYPES.get(tensor.data_type)
    _check("data_type", dtype is not None, "must be a float type")
    assert dtype is not None, "checked above"
    is_matrix = len(tensor.shape) == 2 and tensor.shape[0] > 0
    _check("shape", is_matrix and tensor.shape[1] == width, f"must be [tokens, {width}]")
    integer, exponent = BITS[dtype]
    data = tensor.data
    fits = len(data) == prod(tensor.shape) * np.dtype(integer).itemsize
    _check("data", fits, "must be as long as type and shape say")
    numbers = np.frombuffer(data, integer)
    _check("data", not bool(((numbers & exponent) == exponent).any()), "must be finite numbers")
    return PromptEmbeds(data, dtype, int(tensor.shape[0]), width)


def _check(name: str, passed: bool, rule: str) -> None:
    if not passed:
        field = f"prompt_embeds.{name}"
        raise InvalidRequest(f"{field}: {rule}", field=field)
