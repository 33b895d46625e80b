"""A server whose requests begin with the memory they need now, and that takes it from the last of them."""

from __future__ import annotations

import math
from dataclasses import replace

from enginewire.conformance.reference.generation.job import Job
from enginewire.conformance.reference.server import Reference
from enginewire.conformance.reference.settings import Settings


class Preempting(Reference):
    """A live job holds blocks for what it has, and for one more token of each choice.

    Its tokens take so long that all have come before the first of them ends, on a busy machine as well.
    """

    settings = replace(Settings(), step_seconds=0.012, context_length=512, total_blocks=256, max_num_seqs=16)

    def __init__(self) -> None:
        super().__init__()
        self.num_found: dict[Job, int] = {}

    def look_up(self, job: Job) -> int:
        """What is found when a job has memory again was not found for it: it counts the first time."""
        return self.num_found.setdefault(job, super().look_up(job))

    def release(self, job: Job) -> None:
        """What was found is in its usage."""
        self.num_found.pop(job, None)
        super().release(job)

    def blocks_for(self, job: Job) -> int:
        """All that it may ever need, before it is live."""
        if self.live.get(job.request_id) is not job:
            return super().blocks_for(job)
        tokens = len(job.request.token_ids) + max(len(choice.tokens) for choice in job.choices) + 1
        return math.ceil(tokens / self.settings.block_size) * len(job.choices)

    def fits(self, job: Job) -> bool:
        """Each of those that run has room for one more block, so that nobody gives up its memory at once."""
        free = self.settings.total_blocks - self.counters.kv_blocks_used - self.blocks_for(job)
        return super().fits(job) and free >= len(self.running)

    def advance_job(self, job: Job) -> None:
        """Only with memory for what comes."""
        if job.is_running and self.has_grown(job):
            super().advance_job(job)

    def has_grown(self, job: Job) -> bool:
        """Take the blocks of its next tokens, where none are free from the last job; False for that one."""
        while self.counters.kv_blocks_used + self.blocks_for(job) - job.blocks > self.settings.total_blocks:
            last = self.running[-1]
            self.preempt(last)
            if last is job:
                return False
        self.counters.kv_blocks_used += self.blocks_for(job) - job.blocks
        job.blocks = self.blocks_for(job)
        self.evict()
        return True

    def preempt(self, job: Job) -> None:
        """Back to the head of the queue, with the tokens it has."""
        self.running.remove(job)
        self.counters.kv_blocks_used -= job.blocks
        self.counters.preemptions += 1
        job.blocks, job.is_running = 0, False
        self.waiting.appendleft(job)
