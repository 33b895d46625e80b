"""From logits to one token per row, for the whole batch at once.

Greedy rows take the best logit. The others draw by inverting the cumulative distribution, in the
order of token ids, at one counter-based random number per row: what a row gets does not depend on
the rows beside it. A row whose logits are not finite fails alone.

Knows nothing about queues, blocks or protobuf.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from engine_server.torch_engine.logits_rules import apply_rules
from engine_server.torch_engine.logprobs import RowLogprobs, read_logprobs
from engine_server.torch_engine.params import SamplingParams
from engine_server.torch_engine.random_numbers import uniforms
from engine_server.torch_engine.sequence import Sequence

NUCLEUS_WIDTH = 1024
"""Candidates looked at first for top-p; only a distribution flatter than that is sorted whole."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """One entry per row. A row that is not `valid` has no usable token id."""

    token_ids: list[int]
    valid: list[bool]
    logprobs: list[RowLogprobs | None]


@torch.inference_mode()
def sample(logits: Tensor, sequences: Seq[Sequence]) -> Sampled:
    """Choose the next token of every sequence from `logits` [rows, vocab]; changes `logits`."""
    wants = {row: want for row, sequence in enumerate(sequences) if (want := sequence.request.logprobs)}
    raw = logits[list(wants)] if wants else None
    best, token_ids = logits.max(dim=-1)
    valid = best.isfinite()
    if apply_rules(logits, sequences):
        best, token_ids = logits.max(dim=-1)
        valid &= best.isfinite()
    random_rows = [row for row, sequence in enumerate(sequences) if not sequence.request.sampling.is_greedy]
    if random_rows:
        token_ids[random_rows] = _draw(logits[random_rows], [sequences[row] for row in random_rows])
    logprobs: list[RowLogprobs | None] = [None] * len(sequences)
    if raw is not None:
        found = read_logprobs(raw, token_ids[list(wants)], list(wants.values()))
        for row, values in zip(wants, found, strict=True):
            logprobs[row] = values
    return Sampled(token_ids.tolist(), valid.tolist(), logprobs)


def _draw(logits: Tensor, sequences: Seq[Sequence]) -> Tensor:
    params = [sequence.request.sampling for sequence in sequences]
    temperature = _column([param.temperature for param in params], logits)
    probs = (logits / temperature).softmax(dim=-1)
    filtered = [row for row, param in enumerate(params) if param.has_filters]
    if filtered:
        probs[filtered] = cut_tail(probs[filtered], [params[row] for row in filtered])
    numbers = uniforms(
        [param.seed for param in params],
        [sequence.index for sequence in sequences],
        [sequence.num_output_tokens for sequence in sequences],
    )
    return invert(probs, torch.from_numpy(numbers).to(logits.device))


def invert(probs: Tensor, numbers: Tensor) -> Tensor:
    """The token [rows] at which each row's cumulative share of `probs` passes its number in [0, 1)."""
    cumulative = probs.cumsum(dim=-1)
    total = cumulative[:, -1]
    point = (numbers * total.double()).to(total.dtype)
    # Rounding may lift the point to the total, which no token passes.
    point = point.minimum(torch.nextafter(total, torch.zeros_like(total)))
    found = torch.searchsorted(cumulative, point[:, None], right=True)[:, 0]
    return found.clamp(max=probs.shape[-1] - 1)


def cut_tail(probs: Tensor, params: Seq[SamplingParams]) -> Tensor:
    """Zero what top-k, then top-p within it, and min-p drop from [rows, vocab].

    All three are thresholds on the probability, so tokens of equal probability stay together.
    """
    vocab = probs.shape[-1]
    top_k = [min(param.top_k, vocab) if param.top_k > 0 else vocab for param in params]
    top_p = _column([param.top_p for param in params], probs)
    min_p = _column([param.min_p for param in params], probs)
    limited = _column([float(k < vocab) for k in top_k], probs) > 0
    width = max((k for k in top_k if k < vocab), default=1)
    if any(param.top_p < 1.0 for param in params):
        width = max(width, min(vocab, NUCLEUS_WIDTH))
    ordered = probs.topk(width).values
    if bool((~limited & (top_p < 1.0) & (ordered.sum(-1, keepdim=True) < top_p)).any()):
        ordered = probs.sort(descending=True).values
    cumulative = ordered.cumsum(dim=-1)
    last = torch.tensor(top_k, device=probs.device).clamp(max=ordered.shape[-1])[:, None] - 1
    mass = torch.where(limited, cumulative.gather(-1, last), torch.ones_like(top_p))
    before = pad(cumulative[:, :-1], (1, 0))
    in_nucleus = (before < top_p * mass).sum(-1, keepdim=True).clamp(min=1) - 1
    threshold = ordered.gather(-1, torch.minimum(last, in_nucleus))
    threshold = torch.where(limited | (top_p < 1.0), threshold, torch.zeros_like(threshold))
    threshold = threshold.maximum(min_p * ordered[:, :1])
    return probs.masked_fill(probs < threshold, 0.0)


def _column(values: list[float], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device)[:, None]
