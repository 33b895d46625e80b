"""Tokens that are chosen on the device and not read by the host yet, as inputs of the next step.

Knows nothing about models, queues or protobuf.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

from torch import Tensor

from enginewire.torch_engine.layers.device import send_index
from enginewire.torch_engine.requests.scheduled import Scheduled
from enginewire.torch_engine.requests.sequence import Sequence


@dataclass(frozen=True, slots=True)
class UnreadTokens:
    """The last token of each of `sequences`, in `token_ids` [sequences], int64."""

    sequences: Seq[Sequence]
    token_ids: Tensor

    def of(self, batch: Seq[Scheduled]) -> UnreadRows | None:
        """Those that a batch computes, in its order; None when there are none."""
        places = {sequence: place for place, sequence in enumerate(self.sequences)}
        rows: list[int] = []
        sources: list[int] = []
        next_row = 0
        for grant in batch:
            next_row += grant.num_tokens
            if grant.sequence.num_unread_tokens:  # then it is the only one of its grant
                rows.append(next_row - 1)
                sources.append(places[grant.sequence])
        return UnreadRows(rows, sources, self.token_ids) if rows else None


@dataclass(frozen=True, slots=True)
class UnreadRows:
    """The token of the flat batch's row `rows[i]` is number `sources[i]` of `token_ids`."""

    rows: Seq[int]
    sources: Seq[int]
    token_ids: Tensor

    def put_into(self, token_ids: Tensor, first_row: int = 0) -> None:
        """Replace what stands in these rows of `token_ids` [tokens], which begin with `first_row`."""
        pairs = zip(self.rows, self.sources, strict=True)
        here = [pair for pair in pairs if first_row <= pair[0] < first_row + len(token_ids)]
        if here:
            device = self.token_ids.device
            chosen = self.token_ids[send_index([source for _, source in here], device)]
            places = send_index([row - first_row for row, _ in here], device)
            token_ids.index_copy_(0, places, chosen.to(token_ids.dtype))
