"""What one sequence gets to compute in one step. Knows nothing about torch or about who decides it."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

from enginewire.torch_engine.requests.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A sequence, how many tokens this step computes of it, and the blocks it just got.

    The last of the tokens are its `draft`: guesses of what follows the pending ones.
    """

    sequence: Sequence
    num_tokens: int
    new_blocks: Seq[int]
    draft: Seq[int] = ()

    @property
    def num_pending_tokens(self) -> int:
        """How many of the tokens are its own, not guessed."""
        return self.num_tokens - len(self.draft)

    @property
    def scored(self) -> range:
        """Positions of the prompt whose logits this step adds to its scores, each for the token after it."""
        scores, begin = self.sequence.scored_prompt, self.sequence.num_computed_tokens
        if scores is None:
            return range(0)
        end = min(begin + self.num_tokens, len(self.sequence.request.prompt_token_ids) - 1)
        return range(max(begin, len(scores)), end)

    @property
    def repeats_decodes(self) -> bool:
        """True when all its tokens are output: decoded before a preemption, or by another engine."""
        return self.sequence.num_computed_tokens >= len(self.sequence.request.prompt_token_ids)

    @property
    def samples(self) -> bool:
        """True when this step reaches the last token, so that a next one can be sampled."""
        reaches_last = self.num_pending_tokens == self.sequence.num_pending_tokens
        return self.sequence.request.pooling is None and reaches_last
