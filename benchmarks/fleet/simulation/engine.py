"""One engine of a simulated fleet: a batch, KV blocks, a prefix cache, and what a step takes.

The scheduling is that of continuous batching with chunked prefill. Tokens are a function of the prompt and
the position, so that an answer shows whether it was put together right. Knows nothing about gRPC.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

BLOCK: Final = 16
# How often the tokens of an answer come, in steps: what a stream merges costs the simulation less.
STEPS_PER_MESSAGE: Final = 32


@dataclass(frozen=True, slots=True)
class Speed:
    """Seconds and sizes, by default about those of an 8B model on one H100."""

    step: float = 0.008
    per_sequence: float = 0.00005
    per_prefill_token: float = 0.00004
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    num_blocks: int = 28_000


@dataclass(eq=False, slots=True)
class Job:
    """One request. `emit` takes tokens and whether they are the last."""

    prompt: Sequence[int]
    chain: Sequence[int]
    max_tokens: int
    num_before: int
    emit: Callable[[list[int], bool], None]
    num_left: int = 0
    num_cached: int = 0
    num_blocks: int = 0
    first_step: int = 0
    num_emitted: int = 0
    held: list[int] = field(default_factory=list)
    is_over: bool = False


LETTERS: Final = [*range(97, 123)] * 40


def answer(prompt: Sequence[int], begin: int, end: int) -> list[int]:
    """The tokens that any engine gives from one position to another; at most 1,000."""
    first = (prompt[-1] + begin) % 26
    return LETTERS[first : first + end - begin]


def block_numbers(prompt: Sequence[int]) -> list[int]:
    """One for each full block, which stands for the prompt up to there."""
    number, numbers = 0, []
    for end in range(BLOCK, len(prompt) + 1, BLOCK):
        number = hash((number, *prompt[end - BLOCK : end]))
        numbers.append(number)
    return numbers


class Engine:
    """Lives on the running event loop."""

    def __init__(self, speed: Speed) -> None:
        self._speed = speed
        self.step = 0
        self.is_stalled = False
        self.waiting: deque[Job] = deque()
        self._prefilling: list[Job] = []
        self._decoding: set[Job] = set()
        self._due: list[tuple[int, int, Job]] = []
        self._number = 0
        self._timer: asyncio.TimerHandle | None = None
        # Blocks of prompts: how many hold each; those that nobody holds, oldest first.
        self._holders: dict[int, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._num_private = 0
        self.prompt_tokens = self.cached_tokens = self.output_tokens = 0
        self.busy = 0.0
        self.on_step: Callable[[], None] = lambda: None

    @property
    def running(self) -> int:
        """Requests in the batch."""
        return len(self._prefilling) + len(self._decoding)

    @property
    def blocks_used(self) -> int:
        """Blocks that requests hold."""
        return self._num_private + len(self._holders)

    def submit(self, job: Job) -> None:
        """It waits for its turn."""
        self.waiting.append(job)
        if self._timer is None:
            self._plan(0.0)

    def abort(self, job: Job) -> None:
        """Nobody wants the rest."""
        if not job.is_over:
            job.is_over = True
            if job in self.waiting:
                self.waiting.remove(job)
            else:
                self._leave(job)

    def stop(self) -> None:
        """Nothing is computed any more."""
        if self._timer is not None:
            self._timer.cancel()
        self.is_stalled = True

    def _plan(self, seconds: float) -> None:
        if not self.is_stalled:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._run_step)

    def _run_step(self) -> None:
        self._timer = None
        self.step += 1
        self._emit_due()
        self._admit()
        num_tokens = self._prefill()
        self.on_step()
        if self.running:
            speed = self._speed
            seconds = (
                speed.step + speed.per_sequence * len(self._decoding) + speed.per_prefill_token * num_tokens
            )
            self.busy += seconds
            self._plan(seconds)

    def _admit(self) -> None:
        speed = self._speed
        while self.waiting and self.running < speed.max_num_seqs:
            job = self.waiting[0]
            cached = self._cached(job.chain[: (len(job.prompt) - 1) // BLOCK])
            total = math.ceil((len(job.prompt) + job.max_tokens) / BLOCK)
            fresh = total - len(cached)
            free = speed.num_blocks - self.blocks_used - sum(number not in self._holders for number in cached)
            if fresh > free:
                return
            self.waiting.popleft()
            for number in cached:
                self._hold(job, number)
            self._num_private += fresh
            job.num_blocks = fresh
            while self.blocks_used + len(self._idle) > speed.num_blocks:
                self._idle.popitem(last=False)
            job.num_cached = len(cached) * BLOCK
            job.num_left = len(job.prompt) + job.num_before - job.num_cached
            self.prompt_tokens += len(job.prompt)
            self.cached_tokens += job.num_cached
            self._prefilling.append(job)

    def _cached(self, chain: Sequence[int]) -> list[int]:
        found = []
        for number in chain:
            if number not in self._holders and number not in self._idle:
                break
            found.append(number)
        return found

    def _hold(self, job: Job, number: int) -> None:
        self._idle.pop(number, None)
        self._holders[number] = self._holders.get(number, 0) + 1
        job.held.append(number)

    def _prefill(self) -> int:
        budget = left = self._speed.max_num_batched_tokens - len(self._decoding)
        for job in self._prefilling:
            part = min(left, job.num_left)
            job.num_left -= part
            left -= part
        done = [job for job in self._prefilling if not job.num_left]
        self._prefilling = [job for job in self._prefilling if job.num_left]
        for job in done:
            self._share(job)
            self._decoding.add(job)
            # The first token comes when this step has been computed.
            job.first_step = self.step + 1
            self._push(job, job.first_step)
        return budget - left

    def _share(self, job: Job) -> None:
        """What was computed is there for others from now on."""
        for number in job.chain[len(job.held) :]:
            if number in self._holders or number in self._idle:
                # Somebody else has computed it meanwhile: one of the two is freed at the end.
                continue
            self._hold(job, number)
            self._num_private -= 1
            job.num_blocks -= 1

    def _push(self, job: Job, step: int) -> None:
        self._number += 1
        heapq.heappush(self._due, (step, self._number, job))

    def _emit_due(self) -> None:
        while self._due and self._due[0][0] <= self.step:
            job = heapq.heappop(self._due)[2]
            if job.is_over:
                continue
            num_now = min(self.step - job.first_step + 1, job.max_tokens)
            begin, end = job.num_before + job.num_emitted, job.num_before + num_now
            job.num_emitted = num_now
            self.output_tokens += end - begin
            is_last = num_now == job.max_tokens
            job.emit(answer(job.prompt, begin, end), is_last)
            if is_last:
                job.is_over = True
                self._leave(job)
            else:
                self._push(job, min(self.step + STEPS_PER_MESSAGE, job.first_step + job.max_tokens - 1))

    def _leave(self, job: Job) -> None:
        self._decoding.discard(job)
        if job in self._prefilling:
            self._prefilling.remove(job)
        self._num_private -= job.num_blocks
        for number in reversed(job.held):
            self._holders[number] -= 1
            if not self._holders[number]:
                del self._holders[number]
                self._idle[number] = None
