"""From scheduled sequences to logits: flat tensors in, one forward, one row per sampling sequence.

Knows nothing about queues, sampling or protobuf.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from itertools import accumulate
from typing import Protocol

import torch
from torch import Tensor

from engine_server.torch_engine.attention import AttentionPlan, KvTensors, Span, plan_attention
from engine_server.torch_engine.model_config import ServedConfig
from engine_server.torch_engine.scheduler import Scheduled


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
    def reads_ragged_rows(self) -> bool:
        """True when single tokens read their own length of the cache and nothing beyond."""
        ...

    def forward(
        self, token_ids: Tensor, positions: Tensor, plan: AttentionPlan, cache: KvTensors, sampled: Tensor
    ) -> Tensor:
        """Logits [len(sampled), vocab] in float32 for the rows `sampled` of the flat batch."""
        ...


class ModelRunner:
    """A model and its KV cache."""

    def __init__(self, model: ServedModel, cache: KvTensors) -> None:
        self.model = model
        self.cache = cache
        self._windows = frozenset(model.config.windows)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.model.embedding.device

    @torch.inference_mode()
    def forward(self, batch: Seq[Scheduled]) -> Tensor:
        """Compute every scheduled token; logits [rows, vocab], one row per grant that samples.

        `batch` must be in `batch_order`, and so are the rows.
        """
        if not self.model.reads_ragged_rows:  # only padded rows read what an earlier owner left behind
            self.cache.clear([block for grant in batch for block in grant.new_blocks])
        spans = [_span(grant) for grant in batch]
        like = self.model.embedding
        plan = plan_attention(
            spans, self.cache.block_size, self._windows, like, ragged=self.model.reads_ragged_rows
        )
        ends = accumulate(span.num_new for span in spans)
        sampled = [end - 1 for end, grant in zip(ends, batch, strict=True) if grant.samples]
        return self.model.forward(
            self._tensor([token for grant in batch for token in _new_tokens(grant)]),
            self._tensor([p for span in spans for p in range(span.context - span.num_new, span.context)]),
            plan,
            self.cache,
            self._tensor(sampled),
        )

    def _tensor(self, values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self.device)


def batch_order(grant: Scheduled) -> tuple[bool, int]:
    """Sort key of a batch: decodes first, by context length, so that they can be grouped."""
    return grant.num_tokens > 1, grant.sequence.num_computed_tokens


def _span(grant: Scheduled) -> Span:
    sequence = grant.sequence
    context = sequence.num_computed_tokens + grant.num_tokens
    return Span(grant.num_tokens, context, sequence.block_table)


def _new_tokens(grant: Scheduled) -> list[int]:
    start = grant.sequence.num_computed_tokens
    return grant.sequence.token_ids[start : start + grant.num_tokens]
