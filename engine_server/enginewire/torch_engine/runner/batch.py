"""A batch on its way through the model: forward and sample are asked for, the tokens are read later.

Knows nothing about queues or about what becomes of the tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from enginewire.torch_engine.requests.scheduled import Scheduled
from enginewire.torch_engine.requests.scores import PromptScores
from enginewire.torch_engine.requests.sequence import Sequence
from enginewire.torch_engine.runner.drafted_rows import DraftedRows
from enginewire.torch_engine.runner.statistics import BatchStatistics, Stopwatch
from enginewire.torch_engine.runner.unread_tokens import UnreadTokens
from enginewire.torch_engine.runner.vectors import Computed
from enginewire.torch_engine.sampling.logprobs import PromptRows, read_prompts
from enginewire.torch_engine.sampling.sampler import Choice, Row, sample


class Runner(Protocol):
    """Computes a batch that is in `batch_order`.

    Logits [rows, vocab]: of the grants that sample, then of every position that is scored, then of every
    drafted token.
    """

    def forward(self, batch: list[Scheduled], unread: UnreadTokens | None = None) -> Computed:
        """Raise anything: only the requests of the batch will fail."""
        ...

    def check(self) -> None:
        """Raise when the device is lost: nothing will ever be computed on it again. Waits for it."""
        ...

    def read_kv(self, sequence: Sequence, num_tokens: int) -> memoryview:
        """The keys and values of the first tokens of a sequence. Raises as `forward` does."""
        ...


@dataclass(frozen=True, slots=True)
class Results:
    """What the model made of a batch: a choice for each of `sampled`, a sum for each of `pooled`.

    `drafted` are the rows whose tokens are chosen once those before them are known, None without drafts.
    """

    sampled: list[Scheduled]
    pooled: list[Scheduled]
    computed: Computed
    scored: list[tuple[PromptScores, PromptRows]]
    choice: Choice
    drafted: DraftedRows | None = None

    @property
    def unread(self) -> UnreadTokens:
        """The tokens where they are."""
        return UnreadTokens([grant.sequence for grant in self.sampled], self.choice.token_ids)

    def read(self) -> list[tuple[Scheduled, Row]]:
        """Wait for the device; one row per grant. The scores of prompts go to where they are gathered."""
        rows = list(zip(self.sampled, self.choice.read(), strict=True))
        shares = zip(self.pooled, self.computed.sums, strict=True)
        rows += [(grant, Row(share=share)) for grant, share in shares]
        for scores, prompt_rows in self.scored:
            prompt_rows.add_to(scores)
        return rows


@dataclass(slots=True)
class LaunchedBatch:
    """Grants in `batch_order`, and what came of them: results, or the error of the model."""

    batch: list[Scheduled]
    stopwatch: Stopwatch
    results: Results | None = None
    error: Exception | None = None

    def drop_freed(self) -> None:
        """Forget the grants whose sequences have lost their blocks since, by ending or otherwise."""
        self.batch = [grant for grant in self.batch if grant.sequence.block_table]


def batch_order(grant: Scheduled) -> tuple[bool, bool, int]:
    """Sort key of a batch: decodes first, by context length, to be grouped; repeated ones next."""
    several = grant.num_tokens > 1
    return several, several and not grant.repeats_decodes, grant.sequence.num_computed_tokens


def launch(
    runner: Runner, granted: list[Scheduled], statistics: BatchStatistics, unread: UnreadTokens | None = None
) -> LaunchedBatch:
    """Forward and sample. What the model raises is in the result: torch raises anything."""
    batch = sorted(granted, key=batch_order)
    launched = LaunchedBatch(batch, statistics.begin(batch))
    sampled = [grant for grant in batch if grant.samples]
    try:
        computed = runner.forward(batch, unread)
        launched.stopwatch.forwarded()
        scored = read_prompts(computed.logits[len(sampled) :], batch)
        choice = sample(computed.logits[: len(sampled)], [grant.sequence for grant in sampled])
        pooled = [grant for grant in batch if grant.sequence.request.pooling]
        drafted = DraftedRows.of(sampled, computed.logits)
        launched.results = Results(sampled, pooled, computed, scored, choice, drafted)
    except Exception as error:  # noqa: BLE001  # it must stay in this batch
        launched.stopwatch.failed()
        launched.error = error
    return launched
