"""Prompts of the reference that are embeddings: each row stands for one of its tokens."""

from __future__ import annotations

import zlib
from typing import Final

from enginewire import v1 as pb
from enginewire.conformance.reference.refusal import invalid
from enginewire.conformance.reference.validation import Validation

NUMBER: Final = 4
"""Bytes: there are embeddings in single precision alone."""


class PromptEmbeds(Validation):
    """Reads them before anything looks at the prompt."""

    def check_prompt(self, request: pb.PreprocessedRequest) -> None:
        """Of embeddings as of token ids."""
        if request.HasField("prompt_embeds"):
            self.check_embeds(request.prompt_embeds)
            if request.token_ids:
                raise invalid("prompt_embeds", "excludes token_ids", len(request.token_ids), "one of the two")
            request.token_ids.extend(self.tokens_of(request.prompt_embeds))
        super().check_prompt(request)

    def check_embeds(self, tensor: pb.Tensor) -> None:
        """As many numbers as type and shape say, in rows of the model's width."""
        width, shape = self.config.hidden_size, list(tensor.shape)
        if tensor.data_type != pb.DATA_TYPE_FLOAT32:
            raise invalid("prompt_embeds.data_type", "is not read", tensor.data_type, "DATA_TYPE_FLOAT32")
        if len(shape) != 2 or not shape[0] or shape[1] != width:
            raise invalid("prompt_embeds.shape", "is not that of a prompt", shape, f"[tokens, {width}]")
        if len(tensor.data) != shape[0] * width * NUMBER:
            raise invalid("prompt_embeds.data", "does not fit the shape", len(tensor.data), "the product")

    def tokens_of(self, tensor: pb.Tensor) -> list[int]:
        """A token for each row."""
        size = len(tensor.data) // tensor.shape[0]
        rows = (tensor.data[at : at + size] for at in range(0, len(tensor.data), size))
        return [zlib.crc32(row) % self.config.vocab_size for row in rows]
