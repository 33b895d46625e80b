"""Tokens that are chosen on the device and not read by the host yet, as inputs of the next step.

Knows nothing about models, queues or protobuf.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

from torch import Tensor

from engine_server.torch_engine.host_copies import send_index
from engine_server.torch_engine.scheduled import Scheduled
from engine_server.torch_engine.sequence import Sequence


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
            if grant.sequence.num_unread_tokens and grant.samples:
                rows.append(next_row - 1)
                sources.append(places[grant.sequence])
        if not rows:
            return None
        device = self.token_ids.device
        return UnreadRows(send_index(rows, device), self.token_ids[send_index(sources, device)])


@dataclass(frozen=True, slots=True)
class UnreadRows:
    """`rows` [count] of a flat batch, and the `token_ids` [count] that belong there."""

    rows: Tensor
    token_ids: Tensor

    def put_into(self, token_ids: Tensor) -> None:
        """Replace what stands in these rows of `token_ids` [tokens]."""
        token_ids.index_copy_(0, self.rows, self.token_ids.to(token_ids.dtype))
