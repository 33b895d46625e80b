"""What changes logits before a token is chosen: grammars, token rules, penalties, ends of thinking.

Rows that ask for nothing are not touched. What the lists of a request forbid between them is the caller's
contradiction, whether it shows at once or after some tokens. Knows nothing about temperature or random
numbers.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from enginewire.server.failures import EngineError, InvalidRequest, StepFailed
from enginewire.torch_engine.layers.device import send_column, send_index
from enginewire.torch_engine.requests.params import SamplingParams
from enginewire.torch_engine.requests.sequence import Matcher, Request, Sequence

BANNED = float("-inf")


def apply_rules(logits: Tensor, sequences: Seq[Sequence]) -> bool:
    """Change `logits` [rows, vocab] in place; True if any row was touched."""
    guided = {row: matcher for row, sequence in enumerate(sequences) if (matcher := sequence.matcher)}
    if guided:
        _mask(logits, list(guided), list(guided.values()))
    ruled = [row for row, sequence in enumerate(sequences) if _has_rules(sequence)]
    for row in ruled:
        _apply_token_rules(logits[row], sequences[row])
    penalised = [row for row, sequence in enumerate(sequences) if sequence.request.sampling.has_penalties]
    if penalised:
        _penalise_repetition(logits, sequences, penalised)
        _penalise_occurrence(logits, sequences, penalised)
    forced = _forced_ids(sequences)
    for row, token_id in forced.items():
        logits[row] = BANNED
        logits[row, token_id] = 0.0
    return bool(guided or ruled or penalised or forced)


def _forced_ids(sequences: Seq[Sequence]) -> dict[int, int]:
    """The only token each of these rows may have, whatever else is asked of it."""
    budgets = ((row, sequence.thinking) for row, sequence in enumerate(sequences) if sequence.thinking)
    found = ((row, budget.forced_id) for row, budget in budgets)
    return {row: token_id for row, token_id in found if token_id is not None}


def _mask(logits: Tensor, rows: Seq[int], matchers: Seq[Matcher]) -> None:
    """Leave each of `rows` only what its grammar allows: nothing, when it is too slow to follow."""
    masks = torch.zeros(len(rows), -(-logits.shape[-1] // 32), dtype=torch.int32)
    for i, matcher in enumerate(matchers):
        if not matcher.fill(masks, i):
            masks[i] = 0
    allowed = unpack(masks.to(logits.device), logits.shape[-1])
    logits[rows] = logits[rows].masked_fill(~allowed, BANNED)


def unpack(masks: Tensor, vocab_size: int) -> Tensor:
    """Booleans [rows, vocab_size] from bits [rows, vocab_size / 32], lowest bit first."""
    bits = torch.arange(32, dtype=masks.dtype, device=masks.device)
    return ((masks[:, :, None] >> bits) & 1).bool().flatten(1)[:, :vocab_size]


def _has_rules(sequence: Sequence) -> bool:
    return sequence.must_not_end or sequence.request.sampling.has_token_rules


def _apply_token_rules(logits: Tensor, sequence: Sequence) -> None:
    sampling = sequence.request.sampling
    if sampling.allowed_token_ids:
        allowed = send_index(sampling.allowed_token_ids, logits.device)
        kept = logits[allowed]
        logits.fill_(BANNED)
        logits[allowed] = kept
    bad_ends = _ends_of_bad_words(sequence)
    _ban(logits, bad_ends)
    if sequence.must_not_end:
        _ban(logits, _ends_that_are_too_early(sequence, logits, bad_ends))
    if sampling.logit_bias:
        places = send_index([token_id for token_id, _ in sampling.logit_bias], logits.device)
        logits[places] += send_column([value for _, value in sampling.logit_bias], logits)[:, 0]


def _ban(logits: Tensor, ids: list[int]) -> None:
    if ids:
        logits.index_fill_(0, send_index(ids, logits.device), BANNED)


def _ends_that_are_too_early(sequence: Sequence, logits: Tensor, bad_ends: list[int]) -> list[int]:
    """Ids that would end the choice below `min_tokens`, unless nothing else is left: then they only pass."""
    ending = list(sequence.request.stop.ending_ids)
    if sequence.matcher is not None:
        # What a grammar has left, such as nothing but an end, only its mask says.
        return [] if logits.isfinite().sum() == logits[ending].isfinite().sum() else ending
    # Without one the lists say it, and the device need not be waited for.
    banned = {*ending, *bad_ends}
    allowed = sequence.request.sampling.allowed_token_ids or range(logits.shape[-1])
    return ending if any(token_id not in banned for token_id in allowed) else []


def _ends_of_bad_words(sequence: Sequence) -> list[int]:
    """Ids that would complete a bad word."""
    words = sequence.request.sampling.bad_words
    longest = max((len(word) for word in words), default=1) - 1
    tail = sequence.token_ids[len(sequence.token_ids) - min(longest, sequence.num_output_tokens) :]
    return [last for *start, last in words if not start or tail[-len(start) :] == start]


def _penalise_repetition(logits: Tensor, sequences: Seq[Sequence], rows: Seq[int]) -> None:
    """Divide positive and multiply negative logits of every token in prompt or output."""
    places: list[int] = []
    ids: list[int] = []
    penalties: list[float] = []
    for row in rows:
        penalty = sequences[row].request.sampling.repetition_penalty
        if penalty != 1.0:
            seen = [*sequences[row].request.unique_prompt_ids, *sequences[row].output_counts]
            places += [row] * len(seen)
            ids += seen
            penalties += [penalty] * len(seen)
    if ids:
        at = _at(logits, places, ids)
        values, penalty_of = logits[at], send_column(penalties, logits)[:, 0]
        # An id in both prompt and output is written twice with the same value.
        logits[at] = torch.where(values > 0, values / penalty_of, values * penalty_of)


def _penalise_occurrence(logits: Tensor, sequences: Seq[Sequence], rows: Seq[int]) -> None:
    """Subtract the presence penalty once and the frequency penalty per occurrence in the output."""
    places: list[int] = []
    ids: list[int] = []
    amounts: list[float] = []
    for row in rows:
        sampling, counts = sequences[row].request.sampling, sequences[row].output_counts
        if sampling.presence_penalty or sampling.frequency_penalty:
            places += [row] * len(counts)
            ids += counts
            amounts += [sampling.presence_penalty + sampling.frequency_penalty * n for n in counts.values()]
    if ids:
        at = _at(logits, places, ids)
        logits[at] -= send_column(amounts, logits)[:, 0]


def _at(logits: Tensor, rows: list[int], ids: list[int]) -> tuple[Tensor, Tensor]:
    return send_index(rows, logits.device), send_index(ids, logits.device)


def nothing_left(request: Request, what: str) -> EngineError:
    """The failure of a request that has no `what` left, such as "token"."""
    if any(each.matcher is not None and each.matcher.is_too_slow for each in request.unfinished):
        return StepFailed("the grammar is too slow to follow")
    field = _list_of(request.sampling)
    if field is None:
        return StepFailed(f"the grammar leaves no {what} to choose")
    others = " with its grammar" if request.guide else ""
    return InvalidRequest(f"{field}: the lists of the request{others} leave no {what} to choose", field=field)


def _list_of(sampling: SamplingParams) -> str | None:
    """The list of the caller's that forbids most."""
    if sampling.allowed_token_ids:
        return "sampling_options.allowed_token_ids"
    return "sampling_options.bad_words_token_ids" if sampling.bad_words else None
