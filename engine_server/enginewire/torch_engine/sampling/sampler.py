"""From logits to one token per row, for the whole batch at once.

Greedy rows take the best logit. The others draw by inverting the cumulative distribution, in the
order of token ids, at one counter-based random number per row: what a row gets does not depend on
the rows beside it. A row whose logits are not finite fails alone.

Knows nothing about queues, blocks or protobuf.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from enginewire.torch_engine.layers.device import (
    HostCopy,
    is_far,
    join_rows,
    send_column,
    send_index,
    split_rows,
)
from enginewire.torch_engine.requests.params import SamplingParams
from enginewire.torch_engine.requests.scores import Continuation, RowLogprobs
from enginewire.torch_engine.requests.sequence import Sequence
from enginewire.torch_engine.sampling.logits_rules import apply_rules
from enginewire.torch_engine.sampling.logprobs import read_continuations, read_logprobs
from enginewire.torch_engine.sampling.random_numbers import uniforms

NUCLEUS_WIDTH = 1024
"""Candidates looked at first for top-p; only a distribution flatter than that is sorted whole."""
UNSOUND, RULED_OUT = 0, 2
"""What `usable` is for a row that the model has spoilt, and for one to which rules have left no token."""
SUMMED_ROWS = 32
"""A GPU chooses the order of its sums by the number of rows, so it gets this many at a time."""


class Row(NamedTuple):
    """What a step computed for one sequence: a token, how a beam may go on, or a share [width] of a vector.

    Not `is_sound` when the model's own logits are unusable; `is_ruled_out` when rules have left no token.
    """

    token_id: int = -1
    is_sound: bool = True
    is_ruled_out: bool = False
    logprobs: RowLogprobs | None = None
    continuations: tuple[Continuation, ...] = ()
    share: Tensor | None = None


class Choice:
    """What is chosen for the rows of a step, on its way to the host."""

    def __init__(
        self,
        token_ids: Tensor,
        usable: Tensor,
        logprobs: list[RowLogprobs | None],
        continuations: list[tuple[Continuation, ...]],
    ) -> None:
        """One entry per row. `usable` is UNSOUND, RULED_OUT, or 1 for a good row."""
        self.token_ids = token_ids
        self._copy = HostCopy(token_ids, usable)
        self._logprobs = logprobs
        self._continuations = continuations

    def read(self) -> list[Row]:
        """Wait for the device."""
        return [
            Row(token_id, usable != UNSOUND, usable == RULED_OUT, logprobs, continuations)
            for token_id, usable, logprobs, continuations in zip(
                *self._copy.read(), self._logprobs, self._continuations, strict=True
            )
        ]


@torch.inference_mode()
def sample(logits: Tensor, sequences: Seq[Sequence]) -> Choice:
    """Choose the next token of every sequence from `logits` [rows, vocab]; changes `logits`."""
    beams = [row for row, sequence in enumerate(sequences) if sequence.beam is not None]
    model_scores = _normalise(logits, beams) if beams else logits[:0]
    wants = {
        row: want
        for row, sequence in enumerate(sequences)
        if (want := sequence.request.logprobs) and sequence.beam is None
    }
    raw = logits[list(wants)] if wants else None
    best, token_ids = logits.max(dim=-1)
    usable = best.isfinite()
    if apply_rules(logits, sequences):
        best, token_ids = logits.max(dim=-1)
        usable = usable * (RULED_OUT - best.isfinite().long())
    random_rows = [row for row, sequence in enumerate(sequences) if not sequence.request.sampling.is_greedy]
    if random_rows:
        places = _places(random_rows, logits)
        token_ids[places] = _draw(logits[places], [sequences[row] for row in random_rows])
    logprobs: list[RowLogprobs | None] = [None] * len(sequences)
    if raw is not None:
        found = read_logprobs(raw, token_ids[list(wants)], list(wants.values()))
        for row, values in zip(wants, found, strict=True):
            logprobs[row] = values
    continuations: list[tuple[Continuation, ...]] = [()] * len(sequences)
    for row, own in zip(beams, model_scores, strict=True):
        continuations[row] = _continuations(logits[row], own, sequences[row])
    return Choice(token_ids, usable, logprobs, continuations)


def _normalise(logits: Tensor, rows: list[int]) -> Tensor:
    """Turn some rows into log-probabilities, on which the rules of beams work; a copy of them."""
    scores = logits[rows].log_softmax(dim=-1)
    logits[rows] = scores
    return scores


def _continuations(scores: Tensor, model_scores: Tensor, sequence: Sequence) -> tuple[Continuation, ...]:
    request = sequence.request
    assert request.beams is not None, "only beams have continuations"
    ending_ids = sorted(request.stop.ending_ids)
    return read_continuations(scores, model_scores, ending_ids, request.beams.width, request.logprobs)


def _draw(logits: Tensor, sequences: Seq[Sequence]) -> Tensor:
    params = [sequence.request.sampling for sequence in sequences]
    temperature = send_column([param.temperature for param in params], logits)
    probs = (logits / temperature).softmax(dim=-1)
    filtered = [row for row, param in enumerate(params) if param.has_filters]
    if filtered:
        places = _places(filtered, probs)
        probs[places] = cut_tail(probs[places], [params[row] for row in filtered])
    numbers = uniforms(
        [param.seed for param in params],
        [sequence.index for sequence in sequences],
        [sequence.num_chosen_tokens for sequence in sequences],
    )
    return invert(probs, send_column(numbers.tolist(), probs.new_empty(0, dtype=torch.float64))[:, 0])


def invert(probs: Tensor, numbers: Tensor) -> Tensor:
    """The token [rows] at which each row's cumulative share of `probs` passes its number in [0, 1)."""
    cumulative = _running_sums(probs)
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
    top_p = send_column([param.top_p for param in params], probs)
    min_p = send_column([param.min_p for param in params], probs)
    limited = send_column([float(k < vocab) for k in top_k], probs) > 0
    ordered = _ordered(probs, top_k, params, limited, top_p)
    cumulative = _running_sums(ordered)
    last = send_index(top_k, probs.device).clamp(max=ordered.shape[-1])[:, None] - 1
    mass = torch.where(limited, cumulative.gather(-1, last), torch.ones_like(top_p))
    before = pad(cumulative[:, :-1], (1, 0))
    in_nucleus = (before < top_p * mass).sum(-1, keepdim=True).clamp(min=1) - 1
    threshold = ordered.gather(-1, torch.minimum(last, in_nucleus))
    threshold = torch.where(limited | (top_p < 1.0), threshold, torch.zeros_like(threshold))
    threshold = threshold.maximum(min_p * ordered[:, :1])
    return probs.masked_fill(probs < threshold, 0.0)


def _running_sums(values: Tensor) -> Tensor:
    """Cumulative sums of each row, in an order that does not depend on the number of rows."""
    if not is_far(values.device):
        return values.cumsum(dim=-1)
    return join_rows([tile.cumsum(dim=-1) for tile in split_rows(values, SUMMED_ROWS)], len(values))


def _ordered(
    probs: Tensor, top_k: list[int], params: Seq[SamplingParams], limited: Tensor, top_p: Tensor
) -> Tensor:
    """The largest probabilities of each row, as many as the filters can ask for, best first."""
    vocab = probs.shape[-1]
    width = max((k for k in top_k if k < vocab), default=1)
    open_nuclei = [k == vocab and param.top_p < 1.0 for k, param in zip(top_k, params, strict=True)]
    if not any(open_nuclei):
        return probs.topk(width).values
    if is_far(probs.device):  # to ask whether fewer are enough would cost a wait
        return probs.sort(descending=True).values
    ordered = probs.topk(max(width, min(vocab, NUCLEUS_WIDTH))).values
    if bool((~limited & (top_p < 1.0) & (ordered.sum(-1, keepdim=True) < top_p)).any()):
        return probs.sort(descending=True).values
    return ordered


def _places(rows: list[int], values: Tensor) -> slice | Tensor:
    """All rows as a slice, which needs no index."""
    return slice(None) if len(rows) == len(values) else send_index(rows, values.device)
