"""Log-probabilities as vLLM has them, in rows, to those of the contract, in columns.

Knows nothing about requests, arrays or vLLM.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from enginewire import v1 as pb

IMPOSSIBLE: Final = -1e30
"""What stands for the log-probability of zero."""


def logprobs_of(
    ids: Sequence[Sequence[int]], values: Sequence[Sequence[float]], ranks: Sequence[int], top_n: int
) -> pb.Logprobs:
    """Rows of a token and then its `top_n` alternatives, most probable first; `ranks` count from 1."""
    return pb.Logprobs(
        token_logprobs=[_finite(row[0]) for row in values],
        token_ranks=ranks,
        top_n=top_n,
        top_token_ids=[token_id for row in ids for token_id in row[1 : top_n + 1]],
        top_logprobs=[_finite(value) for row in values for value in row[1 : top_n + 1]],
    )


def _finite(value: float) -> float:
    return value if math.isfinite(value) else IMPOSSIBLE
