"""From scheduled sequences to logits and vectors: flat tensors in, one forward, one row per sequence.

Knows nothing about queues, sampling or protobuf.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence as Seq
from itertools import accumulate
from typing import Protocol

import torch
from torch import Tensor

from enginewire.torch_engine.folder.config import ServedConfig
from enginewire.torch_engine.layers.attention import KvTensors, Reading, Span, plan_attention
from enginewire.torch_engine.layers.device import send_index, wait_for
from enginewire.torch_engine.layers.flat_inputs import EmbeddedRows, FlatInputs, embedded_rows
from enginewire.torch_engine.layers.varlen_ops import send_inputs
from enginewire.torch_engine.lora.projections import AdaptedProjections, LowRanks
from enginewire.torch_engine.requests.adapter import Adapter
from enginewire.torch_engine.requests.pooling import Piece, shares_of
from enginewire.torch_engine.requests.scheduled import Scheduled
from enginewire.torch_engine.requests.sequence import Sequence
from enginewire.torch_engine.runner.decode_graphs import GraphedDecode
from enginewire.torch_engine.runner.fixed_shape import FixedShape
from enginewire.torch_engine.runner.kv_copies import read_kv, write_kv
from enginewire.torch_engine.runner.unread_tokens import UnreadRows, UnreadTokens
from enginewire.torch_engine.runner.vectors import NO_SUMS, Computed, add_up


class ServedModel(Protocol):
    """A model of our own code or of transformers."""

    @property
    def config(self) -> ServedConfig:
        """Its sizes."""
        ...

    @property
    def embedding(self) -> Tensor:
        """The input table; its dtype and device are those of the whole model."""
        ...

    @property
    def reading(self) -> Reading:
        """What plans are made for."""
        ...

    def forward(self, inputs: FlatInputs, cache: KvTensors) -> Tensor:
        """Logits [len(sampled), vocab] in float32 for the rows `sampled` of the flat batch."""
        ...

    def forward_and_embed(
        self, inputs: FlatInputs, cache: KvTensors, pooled: Tensor
    ) -> tuple[Tensor, Tensor]:
        """As `forward`, and the last states [len(pooled), width] of the rows `pooled`."""
        ...


class ModelRunner:
    """A model and its KV cache."""

    def __init__(
        self,
        model: ServedModel,
        cache: KvTensors,
        adapted: AdaptedProjections | None = None,
        graphs: GraphedDecode | None = None,
        fixed_shape: FixedShape | None = None,
    ) -> None:
        """`graphs` compute what they can; a `fixed_shape` computes everything."""
        self.model = model
        self.cache = cache
        self._adapted = adapted
        self._graphs = graphs
        self._fixed_shape = fixed_shape
        self._reads_beyond = model.reading in ("groups", "varlen")
        self._windows = frozenset(model.config.windows)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.model.embedding.device

    @torch.inference_mode()
    def forward(self, batch: Seq[Scheduled], unread: UnreadTokens | None = None) -> Computed:
        """Compute every scheduled token. `batch` must be in `batch_order`, and so are the rows.

        Of the logits [rows, vocab] the first are those of the grants that sample, one row each; the rows of
        the prompts that are scored follow, then those of drafted tokens. Tokens of the batch that the host
        does not know are in `unread`.
        """
        unread_rows = unread.of(batch) if unread else None
        adapters = _adapter_rows(batch)
        if not adapters:
            return self._forward(batch, unread_rows)
        assert self._adapted is not None, "requests with an adapter are accepted only by a model for them"
        num_rows = sum(grant.num_tokens for grant in batch)
        with self._adapted.changing(adapters, num_rows, self.device):
            return self._forward(batch, unread_rows)

    def _forward(self, batch: Seq[Scheduled], unread: UnreadRows | None) -> Computed:
        if self._reads_beyond:  # only padded rows read what an earlier owner left behind
            self.cache.clear([block for grant in batch for block in grant.new_blocks])
        for grant in batch:
            self._copy_handed_over(grant.sequence)
        spans = [_span(grant) for grant in batch]
        tokens = [token for grant in batch for token in new_tokens(grant)]
        if self._fixed_shape:
            sampled = _sampled_rows(batch, spans)
            return Computed(self._fixed_shape.forward(spans, tokens, sampled, unread), NO_SUMS)
        embedded, pieces = embedded_rows(batch, self.device), list(pieces_of(batch))
        if self._graphs and embedded is None and all(map(_is_decode, batch)):
            replayed = self._replay(self._graphs, batch, spans, tokens, unread)
            if replayed is not None:
                return Computed(replayed, NO_SUMS)
        inputs = self._inputs(batch, spans, tokens, embedded)
        if unread:
            unread.put_into(inputs.token_ids)
        if not pieces:
            return Computed(self.model.forward(inputs, self.cache), NO_SUMS)
        shares = shares_of(pieces)
        logits, states = self.model.forward_and_embed(
            inputs, self.cache, send_index(shares.rows, self.device)
        )
        return Computed(logits, add_up(states, shares))

    def _replay(
        self,
        graphs: GraphedDecode,
        batch: Seq[Scheduled],
        spans: Seq[Span],
        tokens: list[int],
        unread: UnreadRows | None,
    ) -> Tensor | None:
        """The logits of decodes; None when no graph is large enough."""
        if len(tokens) == len(spans):
            return graphs.forward(spans, tokens, unread)
        # A drafted token is a row like any other: the keys of all rows are written before one is read.
        logits = graphs.forward([row for span in spans for row in span.rows], tokens, unread)
        return None if logits is None else logits[send_index(_sampled_rows(batch, spans), self.device)]

    def _inputs(
        self, batch: Seq[Scheduled], spans: Seq[Span], tokens: list[int], embedded: EmbeddedRows | None
    ) -> FlatInputs:
        sampled = _sampled_rows(batch, spans)
        if self.model.reading == "varlen":
            return send_inputs(spans, tokens, sampled, self.cache.block_size, self.device, embedded)
        like = self.model.embedding
        plan = plan_attention(spans, self.cache.block_size, self._windows, like, self.model.reading)
        positions = [p for span in spans for p in range(span.context - span.num_new, span.context)]
        ids, places, rows = (send_index(column, self.device) for column in (tokens, positions, sampled))
        return FlatInputs(ids, places, rows, plan, embedded)

    @torch.inference_mode()
    def read_kv(self, sequence: Sequence, num_tokens: int) -> memoryview:
        """The keys and values of the first tokens of a sequence, as bytes in the host's memory."""
        return read_kv(self.cache, sequence.block_table, num_tokens)

    def check(self) -> None:
        """Raise what the device says to everything, once it is lost."""
        wait_for(self.device)

    def _copy_handed_over(self, sequence: Sequence) -> None:
        """Take what another engine has computed into the blocks that the sequence got for it."""
        first, handed_over = sequence.first_copied_token, sequence.request.handed_over
        if first is None or handed_over is None:
            return
        size, end = self.cache.block_size, handed_over.num_tokens
        if self._reads_beyond:
            self.cache.clear(sequence.block_table[first // size : -(-end // size)])
        write_kv(self.cache, sequence.block_table, handed_over.payload, first, end)


def _adapter_rows(batch: Seq[Scheduled]) -> list[tuple[LowRanks, list[int]]]:
    """Each adapter of the batch with its rows."""
    rows: dict[Adapter, list[int]] = {}
    row = 0
    for grant in batch:
        adapter = grant.sequence.request.adapter
        if adapter is not None:
            rows.setdefault(adapter, []).extend(range(row, row + grant.num_tokens))
        row += grant.num_tokens
    return [(adapter.low_ranks, numbers) for adapter, numbers in rows.items()]


def _is_decode(grant: Scheduled) -> bool:
    """One token and its draft in, a row of logits for each of them out, by the model as it is."""
    is_one = grant.num_pending_tokens == 1 and grant.samples
    return is_one and not grant.scored and not grant.sequence.request.adapter


def _sampled_rows(batch: Seq[Scheduled], spans: Seq[Span]) -> list[int]:
    """The rows of last tokens that are known, then of the positions that are scored, then of all drafts."""
    ends = list(accumulate(span.num_new for span in spans))
    pairs = list(zip(ends, batch, strict=True))
    sampled = [end - len(grant.draft) - 1 for end, grant in pairs if grant.samples]
    for end, span, grant in zip(ends, spans, batch, strict=True):
        sampled += [end - span.context + position for position in grant.scored]
    for end, grant in pairs:
        sampled += range(end - len(grant.draft), end)
    return sampled


def _span(grant: Scheduled) -> Span:
    sequence = grant.sequence
    context = sequence.num_computed_tokens + grant.num_tokens
    return Span(grant.num_tokens, context, sequence.block_table, grant.repeats_decodes)


def pieces_of(batch: Seq[Scheduled]) -> Iterator[Piece]:
    """What the grants that embed compute, and in which rows of the flat batch."""
    row = 0
    for grant in batch:
        sequence, pooling = grant.sequence, grant.sequence.request.pooling
        if pooling is not None:
            begin = sequence.num_computed_tokens
            yield Piece(pooling.kind, row, begin, begin + grant.num_tokens, len(sequence.token_ids))
        row += grant.num_tokens


def new_tokens(grant: Scheduled) -> list[int]:
    """The tokens that a grant computes; 0 stands for one that the host does not know yet."""
    start = grant.sequence.num_computed_tokens
    known = grant.sequence.token_ids[start : start + grant.num_pending_tokens]
    if grant.draft:
        return [*known, *grant.draft]
    return known if len(known) == grant.num_tokens else [*known, 0]
