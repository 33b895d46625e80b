"""Log-probabilities of chosen tokens and their alternatives, from the raw logits.

Raw means before temperature, penalties and filters. Knows nothing about how tokens are chosen.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch
from torch import Tensor

from enginewire.torch_engine.requests.scheduled import Scheduled
from enginewire.torch_engine.requests.scores import Continuation, LogprobsWanted, PromptScores, RowLogprobs
from enginewire.torch_engine.requests.sequence import Request

IMPOSSIBLE = -1e30
"""Stands for the logarithm of zero: the wire carries finite numbers only."""


@dataclass(frozen=True, slots=True)
class PromptRows:
    """Consecutive rows of a prompt's log-probabilities, in columns. False `is_finite`: unusable logits."""

    tokens: list[float]
    ranks: list[int]
    top_ids: list[int]
    top: list[float]
    is_finite: bool

    def add_to(self, scores: PromptScores) -> None:
        """Append them."""
        scores.is_finite &= self.is_finite
        scores.tokens.extend(self.tokens)
        scores.ranks.extend(self.ranks)
        scores.top_ids.extend(self.top_ids)
        scores.top.extend(self.top)


@torch.inference_mode()
def read_prompt_rows(logits: Tensor, token_ids: Seq[int], top_n: int) -> PromptRows:
    """One row per row of `logits` [rows, vocab], each about the token of the same place."""
    scores = logits.log_softmax(dim=-1)
    is_finite = not bool(scores.isnan().any())
    scores = scores.clamp(min=IMPOSSIBLE)
    tokens = scores.gather(-1, torch.tensor(token_ids, device=scores.device)[:, None])
    ranks = (scores > tokens).sum(-1) + 1
    top, top_ids = scores.topk(min(top_n, scores.shape[-1]))
    return PromptRows(
        tokens=tokens[:, 0].tolist(),
        ranks=ranks.tolist(),
        top_ids=top_ids.flatten().tolist(),
        top=top.flatten().tolist(),
        is_finite=is_finite,
    )


def read_logprobs(logits: Tensor, chosen: Tensor, wanted: Seq[LogprobsWanted]) -> list[RowLogprobs]:
    """One entry per row of `logits` [rows, vocab]; `chosen` is [rows]."""
    scores = logits.log_softmax(dim=-1).clamp(min=IMPOSSIBLE)
    tokens = scores.gather(-1, chosen[:, None])
    ranks = ((scores > tokens).sum(-1) + 1).tolist()
    widest = max(want.top_n for want in wanted)
    top, top_ids = (part.tolist() for part in scores.topk(min(widest, scores.shape[-1])))
    values = tokens[:, 0].tolist()
    return [
        RowLogprobs(
            token=values[row],
            rank=ranks[row],
            top_ids=top_ids[row][: want.top_n],
            top=top[row][: want.top_n],
            selected=scores[row, list(want.token_ids)].tolist() if want.token_ids else [],
        )
        for row, want in enumerate(wanted)
    ]


def read_continuations(
    scores: Tensor, model_scores: Tensor, ending_ids: Seq[int], count: int, wanted: LogprobsWanted | None
) -> tuple[Continuation, ...]:
    """The best `count` tokens of a row [vocab] of log-probabilities, and the best that do not end a choice.

    Most probable first. `scores` is after the request's rules, `model_scores` before them. Impossible tokens
    are left out.
    """
    count = min(count, len(scores))
    found = scores.topk(count).indices.tolist()
    if ending_ids:
        going = scores.clone()
        going[list(ending_ids)] = -torch.inf
        found += going.topk(count).indices.tolist()
    known = list(dict.fromkeys(found))
    ordered, order = scores[known].sort(descending=True)
    values = [value for value in ordered.tolist() if value > IMPOSSIBLE]
    ids = [known[place] for place in order.tolist()[: len(values)]]
    if wanted is None:
        return tuple(map(Continuation, ids, values))
    clamped = model_scores.clamp(min=IMPOSSIBLE)
    top, top_ids = (part.tolist() for part in clamped.topk(min(wanted.top_n, len(clamped))))
    selected = clamped[list(wanted.token_ids)].tolist() if wanted.token_ids else []
    rows = (RowLogprobs(value, 0, top_ids, top, selected) for value in clamped[ids].tolist())
    return tuple(map(Continuation, ids, values, rows))


def read_prompts(logits: Tensor, batch: list[Scheduled]) -> list[tuple[PromptScores, PromptRows]]:
    """What the rows [scored positions, vocab] of a batch say about its prompts."""
    found: list[tuple[PromptScores, PromptRows]] = []
    for grant in batch if len(logits) else ():
        scores, positions = grant.sequence.scored_prompt, grant.scored
        if scores is not None and positions:
            described = grant.sequence.token_ids[positions.start + 1 : positions.stop + 1]
            rows, logits = logits[: len(positions)], logits[len(positions) :]
            found.append((scores, read_prompt_rows(rows, described, scores.top_n)))
    return found


def is_prompt_usable(request: Request) -> bool:
    """False once a row of the prompt was no distribution."""
    return request.prompt_scores is None or request.prompt_scores.is_finite
