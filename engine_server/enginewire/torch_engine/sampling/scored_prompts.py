"""What a step's logits say about the prompts whose log-probabilities are wanted.

Knows nothing about queues or messages.
"""

from __future__ import annotations

from torch import Tensor

from enginewire.torch_engine.requests.scheduled import Scheduled
from enginewire.torch_engine.requests.scores import PromptScores
from enginewire.torch_engine.requests.sequence import Request, Sequence
from enginewire.torch_engine.sampling.logprobs import PromptRows, read_prompt_rows


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


def owes_prompt_scores(sequence: Sequence) -> bool:
    """True for the choice whose next output carries them."""
    return sequence.index == 0 and sequence.request.prompt_scores is not None
