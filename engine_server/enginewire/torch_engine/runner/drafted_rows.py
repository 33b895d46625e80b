"""The logits behind drafted tokens: which of them count is known when the tokens before them are chosen.

Knows nothing about queues, blocks or what becomes of a token.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from itertools import accumulate

from torch import Tensor

from enginewire.torch_engine.requests.scheduled import Scheduled
from enginewire.torch_engine.requests.sequence import Sequence
from enginewire.torch_engine.sampling.sampler import Row, sample

ChosenRow = tuple[Scheduled, Row]


class DraftedRows:
    """Of a batch, one draft after the other. Nothing is chosen behind a token that was guessed wrong.

    So every token is chosen from its own logits, by the rules as they are after the tokens before it, and
    with its own random number: as in a step of its own, whatever was guessed.
    """

    def __init__(self, grants: Seq[Scheduled], logits: Tensor) -> None:
        """`logits` [drafted tokens, vocab] of the drafts of `grants`."""
        starts = accumulate((len(grant.draft) for grant in grants), initial=0)
        self._first_rows = dict(zip((grant.sequence for grant in grants), starts, strict=False))
        self._grants = grants
        self._logits = logits
        self._num_right: dict[Sequence, int] = {}
        self._depth = 0

    @staticmethod
    def of(sampled: Seq[Scheduled], logits: Tensor) -> DraftedRows | None:
        """The last rows of the logits of a batch; None when nothing is drafted."""
        grants = [grant for grant in sampled if grant.draft]
        count = sum(len(grant.draft) for grant in grants)
        return DraftedRows(grants, logits[len(logits) - count :]) if grants else None

    def confirmed(self, rows: Seq[ChosenRow]) -> list[Scheduled]:
        """Those of the `rows` taken last whose token is the next one of the draft; they go on."""
        depth = self._depth
        return [
            grant
            for grant, row in rows
            if depth < len(grant.draft)
            and grant.draft[depth] == row.token_id
            and grant.sequence.block_table  # else it is over
        ]

    def read(self, confirmed: Seq[Scheduled]) -> list[ChosenRow]:
        """What follows the token that was confirmed, of each of these grants. Waits for the device."""
        sequences = [grant.sequence for grant in confirmed]
        rows = [self._first_rows[sequence] + self._depth for sequence in sequences]
        self._depth += 1
        self._num_right.update(dict.fromkeys(sequences, self._depth))
        return list(zip(confirmed, sample(self._logits[rows], sequences).read(), strict=True))

    def judged(self) -> list[tuple[Scheduled, int]]:
        """Every grant with a draft, and how many tokens of it were right."""
        return [(grant, self._num_right.get(grant.sequence, 0)) for grant in self._grants]
