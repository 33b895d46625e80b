"""Embeddings of the reference: a direction per token, summed and brought to length 1."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from enginewire import v1 as pb
from enginewire.conformance.reference.refusal import Refusal, invalid
from enginewire.conformance.reference.service import Answer, Service

SIZE = 16


class Embeddings(Service):
    """Serves EmbeddingService."""

    def parts(self) -> dict[str, Answer]:
        """With Embed."""
        return {**super().parts(), "EmbeddingService.Embed": lambda request, call: self.embed(request)}

    async def embed(self, request: pb.EmbedRequest) -> pb.EmbedResponse:
        """One vector per input."""
        self.check_state()
        self.check_embed(request)
        inputs = [list(each.token_ids) for each in request.request.token_ids]
        size = request.request.dimensions if request.request.HasField("dimensions") else SIZE
        tokens = self.embedded_tokens(inputs)
        output = pb.EmbeddingsEngineOutput(prompt_tokens=tokens, total_tokens=tokens)
        for vector in self.vectors(inputs):
            output.embeddings.add(values=vector[:size])
        return pb.EmbedResponse(output=output, request_id=request.request_id)

    def embedded_tokens(self, inputs: Sequence[Sequence[int]]) -> int:
        """Tokens of all inputs."""
        return sum(map(len, inputs))

    def vectors(self, inputs: Sequence[Sequence[int]]) -> list[list[float]]:
        """The model's own vectors, in the order of the inputs."""
        return [self.vector(tokens) for tokens in inputs]

    def vector(self, tokens: Sequence[int]) -> list[float]:
        """The vector of one input."""
        sums = [0.0] * SIZE
        for place, token in enumerate(tokens):
            draw = random.Random(hash((place, token))).uniform
            sums = [value + draw(-1, 1) for value in sums]
        return self.normalised(sums)

    def normalised(self, vector: Sequence[float]) -> list[float]:
        """The same direction, length 1."""
        length = math.hypot(*vector)
        return [value / length for value in vector]

    def check_embed(self, request: pb.EmbedRequest) -> None:
        """Raise Refusal for the first thing that is wrong."""
        self.require("embeddings")
        self.check_revision(request.client_revision)
        self.check_request_id(request.request_id)
        self.check_model(request.request.model)
        if request.request.HasField("dimensions") and not 1 <= request.request.dimensions <= SIZE:
            raise invalid("dimensions", "is out of range", request.request.dimensions, f"1 to {SIZE}")
        if not request.request.token_ids:
            raise invalid("token_ids", "has no inputs", 0, "at least 1")
        for place, each in enumerate(request.request.token_ids):
            self.check_input(f"token_ids[{place}]", each.token_ids)

    def check_input(self, path: str, tokens: Sequence[int]) -> None:
        """One input fits the window and has known ids."""
        if not tokens:
            raise invalid(path, "is empty", 0, "at least one id")
        if len(tokens) > self.config.context_length:
            raise Refusal(pb.ERROR_REASON_CONTEXT_EXCEEDED, f"{path}: does not fit the window", field=path)
        if max(tokens) >= self.config.vocab_size:
            raise invalid(path, "is not in the vocabulary", max(tokens), f"below {self.config.vocab_size}")
