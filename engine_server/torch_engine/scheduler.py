"""Which sequences run in the next step, and with how many tokens.

There is no prefill phase and no decode phase: every sequence lets `num_computed_tokens` catch up
with its tokens. A decode has one token to catch up with, a prompt has many and may take several
steps, a preempted sequence starts again at zero; one step mixes all of them.

Knows nothing about torch, threads, protobuf or the meaning of a token.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from operator import attrgetter

from engine_server.torch_engine.kv_cache import BlockPool
from engine_server.torch_engine.sequence import Request, Sequence

_by_urgency = attrgetter("urgency")


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A sequence, how many of its pending tokens this step computes, and the blocks it just got."""

    sequence: Sequence
    num_tokens: int
    new_blocks: Seq[int]

    @property
    def samples(self) -> bool:
        """True when this step reaches the last token, so that a next one can be sampled."""
        return self.num_tokens == self.sequence.num_pending_tokens


class Scheduler:
    """Waiting and running sequences over one block pool, both ordered by urgency."""

    def __init__(self, pool: BlockPool, max_num_seqs: int, max_num_batched_tokens: int) -> None:
        """Every running decode gets its token in every step: the budget must allow for that."""
        assert 0 < max_num_seqs <= max_num_batched_tokens, "the budget cannot serve all decodes"
        self.pool = pool
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.num_preemptions = 0
        self._deadlines: dict[Request, float] = {}

    @property
    def has_work(self) -> bool:
        """True while any sequence waits or runs."""
        return bool(self.waiting or self.running)

    def add(self, request: Request) -> None:
        """Queue every unfinished choice of a request. Each must fit into an empty pool."""
        for sequence in request.unfinished:
            insort(self.waiting, sequence, key=_by_urgency)
        if request.context.deadline is not None:
            self._deadlines[request] = request.context.deadline

    def schedule(self) -> list[Scheduled]:
        """Grant this step's tokens and allocate their blocks."""
        decodes = sum(sequence.num_pending_tokens == 1 for sequence in self.running)
        budget = self.max_num_batched_tokens - decodes
        granted, preempted = self._schedule_running(budget)
        if not preempted:
            budget -= sum(grant.num_tokens for grant in granted) - decodes
            granted += self._schedule_waiting(budget)
        return granted

    def release(self, sequence: Sequence) -> None:
        """Forget a sequence that ended, wherever it is, and free its blocks."""
        sequence.is_finished = True
        queue = self.running if sequence in self.running else self.waiting
        del queue[bisect_left(queue, sequence.urgency, key=_by_urgency)]
        self._free(sequence)
        if not sequence.request.unfinished:
            self._deadlines.pop(sequence.request, None)

    def expired(self, now: float) -> list[Request]:
        """Requests still alive whose deadline has passed; each is returned once."""
        late = [request for request, deadline in self._deadlines.items() if deadline <= now]
        for request in late:
            del self._deadlines[request]
        return late

    def _schedule_running(self, budget: int) -> tuple[list[Scheduled], bool]:
        granted: list[Scheduled] = []
        num_running = len(self.running)
        for position in range(num_running):
            if position >= len(self.running):  # the rest was preempted for those before it
                break
            sequence = self.running[position]
            pending = sequence.num_pending_tokens
            num_tokens = 1 if pending == 1 else min(pending, budget)
            if num_tokens > 0 and self._make_room(sequence, num_tokens):
                budget -= num_tokens if pending > 1 else 0
                granted.append(self._grant(sequence, num_tokens))
        return granted, len(self.running) < num_running

    def _schedule_waiting(self, budget: int) -> list[Scheduled]:
        granted: list[Scheduled] = []
        while self.waiting and budget > 0 and len(self.running) < self.max_num_seqs:
            sequence = self.waiting[0]
            if not self._fits(sequence):
                break
            self.waiting.pop(0)
            insort(self.running, sequence, key=_by_urgency)
            num_tokens = min(sequence.num_pending_tokens, budget)
            budget -= num_tokens
            granted.append(self._grant(sequence, num_tokens))
        return granted

    def _fits(self, sequence: Sequence) -> bool:
        # One spare block per running sequence: without it a newcomer is preempted at once by
        # the decodes beside it, and its prefill was for nothing.
        needed = self.pool.blocks_for(len(sequence.token_ids)) + len(self.running)
        return not self.running or needed <= self.pool.num_free

    def _make_room(self, sequence: Sequence, num_tokens: int) -> bool:
        """Preempt from the least urgent end until `sequence` fits; False if it went itself."""
        while self._blocks_missing(sequence, num_tokens) > self.pool.num_free:
            victim = self.running[-1]
            self._preempt(victim)
            if victim is sequence:
                return False
        return True

    def _blocks_missing(self, sequence: Sequence, num_tokens: int) -> int:
        total = self.pool.blocks_for(sequence.num_computed_tokens + num_tokens)
        return max(total - len(sequence.block_table), 0)

    def _grant(self, sequence: Sequence, num_tokens: int) -> Scheduled:
        new_blocks = self.pool.allocate(self._blocks_missing(sequence, num_tokens))
        sequence.block_table += new_blocks
        return Scheduled(sequence, num_tokens, new_blocks)

    def _preempt(self, sequence: Sequence) -> None:
        self.num_preemptions += 1
        self.running.remove(sequence)
        self._free(sequence)
        insort(self.waiting, sequence, key=_by_urgency)

    def _free(self, sequence: Sequence) -> None:
        self.pool.free(sequence.block_table)
        sequence.block_table = []
        sequence.num_computed_tokens = 0
