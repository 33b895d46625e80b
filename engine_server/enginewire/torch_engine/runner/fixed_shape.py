"""Every step in one shape: each token is a row of the same graph, whatever is computed beside it.

Libraries choose the order of their sums by the shape of what they compute. When the shape never changes, the
order does not either, and a row does not depend on its neighbours. Whether that holds on a device is tried
before the first request. Knows nothing about requests or sampling.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from enginewire.torch_engine.layers.attention import Span
from enginewire.torch_engine.layers.device import send_index
from enginewire.torch_engine.runner.decode_graphs import GraphedDecode
from enginewire.torch_engine.runner.unread_tokens import UnreadRows

FIXED_ROWS = 64
"""A GPU reads all weights for one row about as fast as for these."""


class FixedShape:
    """Steps of any size in parts of `FIXED_ROWS` rows."""

    def __init__(self, graphs: GraphedDecode) -> None:
        """`graphs` has that one size."""
        self._graphs = graphs

    @torch.inference_mode()
    def forward(
        self, spans: Seq[Span], token_ids: list[int], sampled: Seq[int], unread: UnreadRows | None = None
    ) -> Tensor:
        """Logits [len(sampled), vocab] of the rows `sampled` of the flat batch, in any order."""
        rows = [row for span in spans for row in span.rows]
        wanted = sorted(set(sampled))
        found: list[Tensor] = []
        for first in range(0, len(rows), FIXED_ROWS):
            end = first + FIXED_ROWS
            logits = self._compute(rows[first:end], token_ids[first:end], unread, first)
            here = [row - first for row in wanted if first <= row < end]
            found.append(logits[send_index(here, logits.device)])
        joined = torch.cat(found)
        places = {row: place for place, row in enumerate(wanted)}
        return joined[send_index([places[row] for row in sampled], joined.device)]

    def is_invariant(self, block_size: int) -> bool:
        """True when a text gets the same logits bit for bit at both ends of the graph, alone and not alone.

        The text goes into the first block of the cache, which has `block_size` tokens.
        """
        text = [3, 1, 4, 1, 5][:block_size]
        rows = Span(len(text), len(text), [0]).rows
        num_others = FIXED_ROWS - len(text)
        alone = self._compute(rows, text)[: len(text)].clone()
        others = [self._graphs.nobody] * num_others
        company = self._compute([*others, *rows], [*range(num_others), *text])
        return torch.equal(alone, company[num_others:])

    def _compute(
        self, rows: list[Span], token_ids: list[int], unread: UnreadRows | None = None, first: int = 0
    ) -> Tensor:
        """Logits [rows, vocab], good until the next call."""
        logits = self._graphs.forward(rows, token_ids, unread, first)
        assert logits is not None, "a part fits into the graph, and every context into its tables"
        return logits
