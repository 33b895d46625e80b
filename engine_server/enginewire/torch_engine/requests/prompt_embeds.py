"""A prompt that comes as input embeddings instead of token ids, as checked plain bytes.

Knows nothing about torch, models or sequences.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from enginewire import v1 as pb
from enginewire.torch_engine.requests.limits import check

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
    """Raise InvalidRequest for a validated matrix that is not [tokens, `width`] or not finite."""
    check("prompt_embeds.shape", tensor.shape[1] == width, f"must be [tokens, {width}]")
    dtype = DTYPES[tensor.data_type]
    integer, exponent = BITS[dtype]
    numbers = np.frombuffer(tensor.data, integer)
    is_finite = not bool(((numbers & exponent) == exponent).any())
    check("prompt_embeds.data", is_finite, "must be finite numbers")
    return PromptEmbeds(tensor.data, dtype, int(tensor.shape[0]), width)
