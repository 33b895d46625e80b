"""The mocker's vectors: unit vectors that depend on the tokens of their input and on nothing else.

Texts that share tokens are similar: a vector is the sum of one random direction per token. Holds how many
wait for theirs. Knows nothing about steps or generation.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from random import Random

from enginewire import v1 as pb

SIZE = 64
MAX_UINT32 = 2**32 - 1


class MockerEmbeddings:
    """Vectors that take their time: a first token's, and for each input as long as a token."""

    def __init__(self, first: float, each: float) -> None:
        """Seconds."""
        self.num_waiting = 0
        self._first = first
        self._each = each

    async def embed(
        self, request: pb.PreprocessedEmbeddingRequest, adapter: str
    ) -> pb.EmbeddingsEngineOutput:
        """The vectors, after a while."""
        self.num_waiting += 1
        try:
            await asyncio.sleep(self._first + self._each * len(request.token_ids))
            return embeddings_of(request, adapter)
        finally:
            self.num_waiting -= 1


def embeddings_of(request: pb.PreprocessedEmbeddingRequest, adapter: str = "") -> pb.EmbeddingsEngineOutput:
    """One vector per input, cut to the dimensions that were asked for. An adapter's name comes first."""
    size = request.dimensions if request.HasField("dimensions") else SIZE
    tokens = min(sum(len(each.token_ids) for each in request.token_ids), MAX_UINT32)
    name = adapter.encode()
    vectors = [vector_of([*name, *each.token_ids], size) for each in request.token_ids]
    return pb.EmbeddingsEngineOutput(
        embeddings=[pb.Embedding(values=vector) for vector in vectors],
        prompt_tokens=tokens,
        total_tokens=tokens,
    )


def vector_of(token_ids: Iterable[int], size: int) -> list[float]:
    """The unit vector of an input."""
    # Every id counts by its place too, a little: the order of words is not without meaning.
    weighted = [(1.0 / (1.0 + place / 1000.0), _direction(token)) for place, token in enumerate(token_ids)]
    summed = [math.fsum(weight * each[axis] for weight, each in weighted) for axis in range(size)]
    length = math.hypot(*summed)
    return [value / length for value in summed] if length else [1.0] + [0.0] * (size - 1)


@lru_cache(maxsize=4096)
def _direction(token_id: int) -> Sequence[float]:
    random = Random(token_id)
    return [random.gauss(0.0, 1.0) for _ in range(SIZE)]
