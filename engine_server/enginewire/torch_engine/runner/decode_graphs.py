"""Decode steps as recorded graphs: the kernels of a step are launched in one piece instead of one by one.

A graph has fixed sizes and addresses. So there is one per number of rows, for a few numbers; a batch goes
into the next larger one, and what is left over computes a token of nobody into a scratch block. Knows
nothing about CUDA: who records is given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence as Seq
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from enginewire.torch_engine.layers.attention import AttentionPlan, KvTensors, Span, VarlenRows, token_slots
from enginewire.torch_engine.layers.device import gather
from enginewire.torch_engine.layers.flat_inputs import FlatInputs
from enginewire.torch_engine.runner.unread_tokens import UnreadRows

Compute = Callable[[], Tensor]
Record = Callable[[Compute], Compute]
"""Turns a computation on fixed tensors into one that is replayed: it gives the same tensor every time."""

LARGEST_DOUBLING = 32


class GraphedModel(Protocol):
    """What is recorded; see `ServedModel`."""

    @property
    def embedding(self) -> Tensor:
        """The input table."""
        ...

    def forward(self, inputs: FlatInputs, cache: KvTensors) -> Tensor:
        """Logits of the rows `sampled`."""
        ...


@dataclass(frozen=True, slots=True)
class _Graph:
    """A graph knows addresses only: `compute`, not called again, holds the tensors that `replay` reads."""

    inputs: Tensor
    compute: Compute
    replay: Compute


class GraphedDecode:
    """Graphs of `model` for batches of single tokens.

    `nobody` is what fills a batch up: a token in a block of its own.
    """

    def __init__(
        self, model: GraphedModel, cache: KvTensors, sizes: Seq[int], max_context: int, record: Record
    ) -> None:
        """Record one per size; `max_context` is in tokens, the last block of `cache` belongs to nobody."""
        self._model = model
        self._cache = cache
        self._scratch = len(cache.keys[0]) - 1
        self._max_blocks = -(-max_context // cache.block_size)
        self.nobody = Span(1, 1, [self._scratch])
        cache.clear([self._scratch])
        # One for all graphs: each would keep a result of its own for good.
        self._logits = model.embedding.new_empty(max(sizes), len(model.embedding), dtype=torch.float32)
        # The largest first: the others fit into the memory that it needs.
        self._graphs = {size: self._record(size, record) for size in sorted(sizes, reverse=True)}

    @torch.inference_mode()
    def forward(
        self,
        spans: Seq[Span],
        token_ids: Seq[int],
        unread: UnreadRows | None = None,
        first_row: int = 0,
    ) -> Tensor | None:
        """Logits [len(spans), vocab], good until the next call; None when no graph is large enough.

        `spans` have one new token each; those of the `unread` rows replace their `token_ids`. The
        first of them is `first_row` of the flat batch.
        """
        size = min((size for size in self._graphs if size >= len(spans)), default=None)
        if size is None or max(len(span.block_table) for span in spans) > self._max_blocks:
            return None
        graph = self._graphs[size]
        missing = size - len(spans)
        padded = [*spans, *[self.nobody] * missing]
        self._fill(graph.inputs, padded, [*token_ids, *[0] * missing])
        if unread:
            unread.put_into(graph.inputs[:size], first_row)
        return graph.replay()[: len(spans)]

    def _fill(self, inputs: Tensor, spans: Seq[Span], token_ids: list[int]) -> None:
        """Bring a batch to the fixed tensors in one copy from the host.

        Of the tables only what this batch needs: nobody reads the blocks behind a context.
        """
        width = max(len(span.block_table) for span in spans)
        contexts = [span.context for span in spans]
        tables = [
            block for span in spans for block in (*span.block_table, *[0] * (width - len(span.block_table)))
        ]
        slots = token_slots(spans, self._cache.block_size)
        there = gather([token_ids, slots, contexts, tables], inputs.device).to(
            inputs.device, non_blocking=True
        )
        rows = len(spans)
        inputs[: 3 * rows].copy_(there[: 3 * rows])
        inputs[3 * rows :].view(rows, -1)[:, :width].copy_(there[3 * rows :].view(rows, width))

    @torch.inference_mode()
    def _record(self, size: int, record: Record) -> _Graph:
        device = self._model.embedding.device
        inputs = torch.zeros(size * (3 + self._max_blocks), dtype=torch.int32, device=device)
        self._fill(inputs, [self.nobody] * size, [0] * size)
        ends = torch.arange(size + 1, dtype=torch.int32, device=device)
        rows = torch.arange(size, device=device)
        sizes = [size, size, size, size * self._max_blocks]
        longest = self._max_blocks * self._cache.block_size

        def compute() -> Tensor:
            token_ids, slots, contexts, tables = torch.split(inputs, sizes)
            key_ends = torch.nn.functional.pad(contexts.cumsum(0, dtype=torch.int32), (1, 0))
            varlen = VarlenRows(ends, key_ends, contexts, tables.view(size, -1), 1, longest)
            plan = AttentionPlan(slots.long(), [], varlen=varlen)
            positions = contexts.long() - 1
            logits = self._model.forward(FlatInputs(token_ids.long(), positions, rows, plan), self._cache)
            return self._logits[:size].copy_(logits)

        return _Graph(inputs, compute, record(compute))


def graph_sizes(max_rows: int) -> list[int]:
    """1, 2, 4 … 32, 64, 96 … and `max_rows` itself."""
    doubling, sizes = 1, []
    while doubling < min(max_rows, LARGEST_DOUBLING):
        sizes.append(doubling)
        doubling *= 2
    sizes += range(LARGEST_DOUBLING, max_rows, LARGEST_DOUBLING)
    return [*sizes, max_rows]
