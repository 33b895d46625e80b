"""Which sequences run in the next step, and with how many tokens.

There is no prefill phase and no decode phase: every sequence lets `num_computed_tokens` catch up
with its tokens. A decode has one token to catch up with, a prompt has many and may take several
steps, a preempted sequence starts again at what the prefix cache still has of it; one step mixes all
of them.

Knows nothing about torch, threads, protobuf or the meaning of a token.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence as Seq
from math import floor
from operator import attrgetter

from enginewire.torch_engine.requests.scheduled import Scheduled
from enginewire.torch_engine.requests.sequence import HandedOver, Request, Sequence
from enginewire.torch_engine.scheduling.admission_rules import AdmissionRules
from enginewire.torch_engine.scheduling.block_pool import BlockPool
from enginewire.torch_engine.scheduling.drafting.drafter import Drafting
from enginewire.torch_engine.scheduling.prefix_cache import PrefixCache
from enginewire.torch_engine.scheduling.sliding_window import SlidingWindow

_by_urgency = attrgetter("urgency")


SCORED_TOKENS = 256
"""Scored and drafted tokens per step: a row of logits takes megabytes with a large vocabulary."""


class Scheduler:
    """Waiting and running sequences over one block pool, both ordered by urgency."""

    def __init__(
        self,
        pool: BlockPool,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        rules: AdmissionRules | None = None,
        window: int | None = None,
    ) -> None:
        """Every running decode gets its token in every step: the budget must allow for that.

        No layer looks further back than `window` tokens, if it is given.
        """
        assert 0 < max_num_seqs <= max_num_batched_tokens, "the budget cannot serve all decodes"
        self.pool = pool
        self.prefix_cache = PrefixCache(pool)
        self.rules = rules or AdmissionRules()
        self.window = SlidingWindow(window, pool.block_size) if window else None
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.drafting: Drafting | None = None
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.num_preemptions = 0
        # Steps in which sequences joined others that were running, by TGI's words.
        self.num_concats = {"backpressure": 0, "wait_exceeded": 0}
        self._steps_without_admission = 0
        self._scored_budget = SCORED_TOKENS
        self._deadlines: dict[Request, float] = {}

    @property
    def has_work(self) -> bool:
        """True while any sequence waits or runs."""
        return bool(self.waiting or self.running)

    @property
    def takes_any_length(self) -> bool:
        """True when a window leaves so little of every sequence that it fits into an empty pool."""
        return self.window is not None and self.window.most_blocks(1) <= self.pool.num_blocks

    def add(self, request: Request) -> None:
        """Queue every unfinished choice of a request. What it holds of each must fit into an empty pool."""
        for sequence in request.unfinished:
            insort(self.waiting, sequence, key=_by_urgency)
        if self.drafting:
            self.drafting.start(request)
        if request.context.deadline is not None:
            self._deadlines[request] = request.context.deadline

    def schedule(self) -> list[Scheduled]:
        """Grant this step's tokens and allocate their blocks."""
        self._scored_budget = SCORED_TOKENS
        decodes = sum(sequence.num_pending_tokens == 1 for sequence in self.running)
        budget = self.rules.prefill_budget(self.max_num_batched_tokens, decodes)
        granted, preempted = self._schedule_running(budget)
        self._steps_without_admission += 1
        if not preempted:
            budget -= sum(grant.num_tokens for grant in granted) - decodes
            granted += self._admit(budget)
        if not granted and all(sequence.is_idle for sequence in self.running):
            return self._unblock(budget)
        return self._with_drafts(granted, self.drafting) if self.drafting else granted

    def restart(self, sequence: Sequence) -> None:
        """Queue a beam that became another one, or is new: it begins with what others have computed."""
        if sequence in self.running:
            self.running.remove(sequence)
        if sequence not in self.waiting:
            insort(self.waiting, sequence, key=_by_urgency)
        self._free(sequence)

    def advance(self, grant: Scheduled) -> None:
        """Take note that the tokens of a grant are computed."""
        sequence = grant.sequence
        self._compute(sequence, grant.num_pending_tokens)
        sequence.first_copied_token = None
        if sequence.request.handed_over and not any(each.needs_copy for each in sequence.request.unfinished):
            sequence.request.forget_handed_over()

    def accept(self, sequence: Sequence) -> None:
        """Take note that the next token of its draft is right, and computed by that."""
        if sequence.drafter:
            sequence.drafter.num_accepted += 1
        self._compute(sequence, 1)

    def _compute(self, sequence: Sequence, num_tokens: int) -> None:
        sequence.num_computed_tokens += num_tokens
        self.prefix_cache.register(sequence)
        self._release_behind_window(sequence)

    def _with_drafts(self, granted: list[Scheduled], drafting: Drafting) -> list[Scheduled]:
        """Spend what is left of the step; who waits has had its turn, and needs the blocks."""
        left = self.max_num_batched_tokens - sum(grant.num_tokens for grant in granted)
        left = min(left, self._scored_budget)
        return drafting.extend(granted, self.pool, left, takes_blocks=not self.waiting)

    def _release_behind_window(self, sequence: Sequence) -> None:
        """Give back the blocks that no token to come can see."""
        window = self._window_of(sequence)
        end = window.num_behind(sequence.num_computed_tokens) if window else 0
        if end > sequence.num_released_blocks:
            self.pool.free(sequence.block_table[sequence.num_released_blocks : end])
            sequence.block_table[:end] = [sequence.block_table[end]] * end
            sequence.num_released_blocks = end

    def _window_of(self, sequence: Sequence) -> SlidingWindow | None:
        """None where whole tables are taken: beams begin with each other's, a hand-off is all of one."""
        request = sequence.request
        is_whole = request.beams or request.hands_over or self._copied(sequence)
        return None if is_whole else self.window

    def release(self, sequence: Sequence) -> None:
        """Forget a sequence that ended, wherever it is, and free its blocks."""
        sequence.is_finished = True
        queue = self.running if sequence in self.running else self.waiting
        del queue[bisect_left(queue, sequence.urgency, key=_by_urgency)]
        self._free(sequence)
        if not sequence.request.unfinished:
            self._deadlines.pop(sequence.request, None)
            sequence.request.forget_handed_over()

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
            num_tokens = 1 if pending == 1 else self._most_tokens(sequence, budget)
            if num_tokens > 0 and self._make_room(sequence, num_tokens):
                budget -= num_tokens if pending > 1 else 0
                granted.append(self._grant(sequence, num_tokens))
        return granted, len(self.running) < num_running

    def _admit(self, budget: int) -> list[Scheduled]:
        """Let waiting sequences join, if that is worth holding up those that run."""
        num_running = len(self.running)
        is_overdue = self._steps_without_admission > self.rules.max_waiting_tokens
        enough = floor(self.rules.waiting_served_ratio * num_running)
        if num_running and not is_overdue and len(self.waiting) < enough:
            return []
        granted = self._schedule_waiting(budget)
        if granted and num_running:
            self.num_concats["wait_exceeded" if is_overdue else "backpressure"] += 1
        return granted

    def _schedule_waiting(self, budget: int) -> list[Scheduled]:
        granted: list[Scheduled] = []
        num_passed = 0  # they keep their turn
        places = self.max_num_seqs - len(self.running)
        while budget > 0 and places > 0 and num_passed < len(self.waiting):
            sequence = self.waiting[num_passed]
            is_idle = sequence.is_idle or sequence.num_unread_tokens > 0
            if is_idle or self._is_prompt_under_way(sequence):
                num_passed += 1
                places -= not is_idle  # a place is kept for who only waits for a prompt
                continue
            cached = self._find_computed(sequence)
            if not self._fits(sequence, cached) or self._would_be_cut(sequence, budget):
                break
            self.waiting.pop(num_passed)
            places -= 1
            self._start(sequence, cached)
            num_tokens = self._most_tokens(sequence, budget)
            budget -= num_tokens
            granted.append(self._grant(sequence, num_tokens))
        return granted

    def _unblock(self, budget: int) -> list[Scheduled]:
        """Idle beams may hold what their siblings wait for: let go of them, the least urgent first."""
        granted = self._schedule_waiting(budget)
        while not granted and self.running:
            self._preempt(self.running[-1])
            granted = self._schedule_waiting(budget)
        return granted

    def _find_computed(self, sequence: Sequence) -> list[int]:
        """The blocks that a waiting sequence begins with and others have computed."""
        if sequence.beam is None or sequence.request.cache_root is not None:
            return self.prefix_cache.find(sequence)
        # Beams share their blocks even when their request stays out of the cache.
        shared = [self._shared_blocks(sequence, other) for other in sequence.request.unfinished]
        return max(shared, key=len)

    def _shared_blocks(self, sequence: Sequence, other: Sequence) -> list[int]:
        """The full blocks of another beam that hold the tokens `sequence` begins with."""
        size, count = self.pool.block_size, 0
        most = min(other.num_computed_tokens, sequence.num_reusable_tokens) // size
        while count < most and _block(sequence, count, size) == _block(other, count, size):
            count += 1
        return other.block_table[:count]

    def _is_prompt_under_way(self, sequence: Sequence) -> bool:
        """True while another choice computes the prompt that this one will then find in the cache."""
        request = sequence.request
        if request.cache_root is None:
            return False
        size = self.pool.block_size
        shared = (len(request.prompt_token_ids) - 1) // size * size
        return any(other.block_table and other.num_computed_tokens < shared for other in request.unfinished)

    def _would_be_cut(self, sequence: Sequence, budget: int) -> bool:
        """True when nothing, or not all of what must stay whole, can be computed in this step."""
        if self.rules.whole_prompts:
            return sequence.num_pending_tokens > budget
        return self._most_tokens(sequence, budget) <= 0

    def _fits(self, sequence: Sequence, cached: Seq[int]) -> bool:
        if not self.running:
            return True
        # One spare block per running sequence: without it a newcomer is preempted at once by
        # the decodes beside it, and its prefill was for nothing.
        needed = self._blocks_needed(sequence, cached) + len(self.running)
        totals = (each.request.stop.max_total_tokens for each in (*self.running, sequence))
        return needed <= self.pool.num_free and self.rules.allow_total(totals)

    def _blocks_needed(self, sequence: Sequence, cached: Seq[int]) -> int:
        """Free blocks that a waiting sequence takes at most until its last token is computed."""
        window = self._window_of(sequence)
        behind = window.num_behind(len(cached) * self.pool.block_size) if window else 0
        idle = sum(not self.pool.is_held(block) for block in cached[behind:])
        needed = self.pool.blocks_for(len(sequence.token_ids)) - len(cached) + idle
        most = self.rules.prefill_budget(self.max_num_batched_tokens, 0)
        return min(needed, window.most_blocks(most)) if window else needed

    def _start(self, sequence: Sequence, cached: list[int]) -> None:
        """Let a sequence run that was waiting, beginning after the blocks that are computed already."""
        insort(self.running, sequence, key=_by_urgency)
        self._steps_without_admission = 0
        self.prefix_cache.count(sequence, cached)
        self.pool.hold(cached)
        sequence.block_table = cached
        sequence.num_cached_blocks = len(cached)
        sequence.num_computed_tokens = len(cached) * self.pool.block_size
        request = sequence.request
        if request.num_cached_tokens is None:
            request.num_cached_tokens = min(sequence.num_computed_tokens, len(request.prompt_token_ids))
        self._release_behind_window(sequence)
        self._begin_after_copy(sequence)

    def _begin_after_copy(self, sequence: Sequence) -> None:
        """Make room for what another engine has computed."""
        handed_over = self._copied(sequence)
        if handed_over and handed_over.num_tokens > sequence.num_computed_tokens:
            sequence.first_copied_token = sequence.num_computed_tokens
            num_blocks = self.pool.blocks_for(handed_over.num_tokens) - len(sequence.block_table)
            sequence.block_table += self.pool.allocate(num_blocks)
            sequence.num_computed_tokens = handed_over.num_tokens
        sequence.may_copy = False

    def _copied(self, sequence: Sequence) -> HandedOver | None:
        """What a sequence begins with; computed again after a preemption, and where it fills the pool."""
        handed_over = sequence.request.handed_over if sequence.may_copy else None
        fits = handed_over and handed_over.num_tokens < self.pool.capacity
        return handed_over if fits else None

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

    def _most_tokens(self, sequence: Sequence, budget: int) -> int:
        """Tokens a sequence may compute in this step."""
        is_scored = sequence.scored_prompt is not None
        # What a window has left behind makes room, step by step, for a text longer than the pool.
        num_blocks = self.pool.num_blocks + sequence.num_released_blocks
        room = num_blocks * self.pool.block_size - sequence.num_computed_tokens
        return min(_uniform_tokens(sequence), budget, room, self._scored_budget if is_scored else budget)

    def _grant(self, sequence: Sequence, num_tokens: int) -> Scheduled:
        new_blocks = self.pool.allocate(self._blocks_missing(sequence, num_tokens))
        sequence.block_table += new_blocks
        if sequence.scored_prompt is not None:
            self._scored_budget -= num_tokens
        return Scheduled(sequence, num_tokens, new_blocks)

    def _preempt(self, sequence: Sequence) -> None:
        self.num_preemptions += 1
        self.running.remove(sequence)
        self._free(sequence)
        insort(self.waiting, sequence, key=_by_urgency)

    def _free(self, sequence: Sequence) -> None:
        self.pool.free(sequence.held_blocks)
        self.prefix_cache.sort_idle(sequence)
        sequence.block_table = []
        sequence.num_released_blocks = 0
        sequence.num_cached_blocks = 0
        sequence.num_computed_tokens = 0
        sequence.first_copied_token = None


def _uniform_tokens(sequence: Sequence) -> int:
    """Pending tokens up to the end of the prompt, or all of the output: the two are computed differently."""
    prompt = len(sequence.request.prompt_token_ids) - sequence.num_computed_tokens
    return min(prompt, sequence.num_pending_tokens) if prompt > 0 else sequence.num_pending_tokens


def _block(sequence: Sequence, index: int, size: int) -> list[int]:
    return sequence.token_ids[index * size : (index + 1) * size]
