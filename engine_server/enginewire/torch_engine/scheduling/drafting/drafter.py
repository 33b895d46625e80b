"""Who drafts for whom, and with what is left of a step.

Knows nothing about torch, or about how the tokens of a step are chosen.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import replace
from itertools import takewhile

from enginewire.torch_engine.requests.scheduled import Scheduled
from enginewire.torch_engine.requests.sequence import Request, Sequence
from enginewire.torch_engine.scheduling.block_pool import BlockPool
from enginewire.torch_engine.scheduling.drafting.ngram import NgramFinder
from enginewire.torch_engine.scheduling.drafting.pace import Pace


class NgramDrafter:
    """Drafts for one choice, by what its own text says."""

    def __init__(self, most: int, finder: NgramFinder, pace: Pace) -> None:
        """No draft has more than `most` tokens."""
        self.num_drafted = 0
        self.num_accepted = 0
        self._most = most
        self._finder = finder
        self._pace = pace

    def propose(self, token_ids: Seq[int], most: int, num_sampled: int) -> list[int]:
        """See `Drafter`."""
        found = self._finder.find(token_ids, min(most, self._most))
        return found[: self._pace.length(len(found), num_sampled)] if found else []

    def note(self, num_drafted: int, num_right: int) -> None:
        """See `Drafter`."""
        self._pace.note(num_drafted, num_right)


class Drafting:
    """Gives every choice that can have one a drafter, and drafts a place in the step."""

    def __init__(self, num_speculative_tokens: int, lookup: tuple[int, int], row_cost: float) -> None:
        """`lookup` are the fewest and the most tokens that are looked up, `row_cost` as in `Pace`."""
        self._most = num_speculative_tokens
        self._lookup = lookup
        self._row_cost = row_cost

    def start(self, request: Request) -> None:
        """Beams are rewritten, and what embeds or hands over has no output; embeddings have no ids."""
        if request.beams or request.pooling or request.hands_over or request.prompt_embeds is not None:
            return
        for sequence in request.unfinished:
            sequence.drafter = NgramDrafter(self._most, NgramFinder(*self._lookup), Pace(self._row_cost))

    def extend(
        self, granted: Seq[Scheduled], pool: BlockPool, num_tokens: int, *, takes_blocks: bool
    ) -> list[Scheduled]:
        """Add drafts of `num_tokens` at most to the grants, in their order.

        A grant that computes nothing but output gets one: the tokens of prompts are computed in another way.
        """
        num_sampled = sum(grant.samples for grant in granted)
        extended: list[Scheduled] = []
        for grant in granted:
            if num_tokens > 0 and grant.samples and grant.repeats_decodes:
                room = _room(grant.sequence, grant.num_tokens, pool, takes_blocks=takes_blocks)
                draft = draft_of(grant.sequence, min(num_tokens, room), num_sampled)
                grant = _with_draft(grant, draft, pool) if draft else grant
                num_tokens -= len(draft)
            extended.append(grant)
        return extended


def settle(grant: Scheduled, num_right: int, pool: BlockPool) -> None:
    """The draft of a grant is judged. Blocks that hold nothing else than wrong tokens are given back."""
    sequence = grant.sequence
    assert sequence.drafter is not None, "somebody has made the draft"
    sequence.drafter.note(len(grant.draft), num_right)
    if sequence.block_table:  # else it is over
        end = pool.blocks_for(sequence.num_computed_tokens)
        pool.free(sequence.block_table[end:])
        del sequence.block_table[end:]


def draft_of(sequence: Sequence, most: int, num_sampled: int) -> list[int]:
    """Up to `most` tokens that may come next, in a step in which `num_sampled` choices get a token.

    None behind the last token a choice may have, and none that its grammar refuses or that would end it.
    """
    stop = sequence.request.stop
    most = min(most, stop.max_total_tokens - len(sequence.token_ids) - 1)
    if sequence.drafter is None or most <= 0:
        return []
    found = sequence.drafter.propose(sequence.token_ids, most, num_sampled)
    found = list(takewhile(lambda token_id: token_id not in stop.ending_ids, found))
    return found[: sequence.matcher.count_allowed(found)] if found and sequence.matcher else found


def _room(sequence: Sequence, num_tokens: int, pool: BlockPool, *, takes_blocks: bool) -> int:
    """Tokens for which there are blocks, behind the `num_tokens` that are granted already."""
    num_blocks = len(sequence.block_table) + (pool.num_free if takes_blocks else 0)
    return num_blocks * pool.block_size - sequence.num_computed_tokens - num_tokens


def _with_draft(grant: Scheduled, draft: list[int], pool: BlockPool) -> Scheduled:
    sequence, num_tokens = grant.sequence, grant.num_tokens + len(draft)
    missing = pool.blocks_for(sequence.num_computed_tokens + num_tokens) - len(sequence.block_table)
    new_blocks = pool.allocate(max(missing, 0))
    sequence.block_table += new_blocks
    assert sequence.drafter is not None, "somebody has made the draft"
    sequence.drafter.num_drafted += len(draft)
    return replace(grant, num_tokens=num_tokens, new_blocks=[*grant.new_blocks, *new_blocks], draft=draft)
