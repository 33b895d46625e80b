"""Slots, queue, KV blocks and the step loop. One event loop, no threads."""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from collections import deque
from collections.abc import Iterable

from enginewire import v1 as pb
from enginewire.conformance.reference.generation.choices import Choices
from enginewire.conformance.reference.generation.job import Choice, Item, Job
from enginewire.conformance.reference.refusal import Refusal

REMEMBERED = 256
"""Ids that are kept after their end, or after an abort that came first."""

BlockKey = tuple[str, str, tuple[int, ...]]
"""A cached block: salt, adapter, and all tokens up to its end."""


class Engine(Choices):
    """Runs jobs."""

    def __init__(self) -> None:
        super().__init__()
        self.lifetime_id = secrets.token_hex(8)
        self.state = pb.ENGINE_STATE_STARTING
        self.live: dict[str, Job] = {}
        self.waiting: deque[Job] = deque()
        self.running: list[Job] = []
        self.cache: dict[BlockKey, None] = {}
        self.counters = pb.Load()
        self.finished: deque[str] = deque(maxlen=REMEMBERED)
        self._wake = asyncio.Event()

    # -- jobs

    def job(self, request_id: str, request: pb.PreprocessedRequest, deadline: float = math.inf) -> Job:
        """A job for a valid request."""
        options = request.sampling_options
        seed = options.seed if options.HasField("seed") else secrets.randbits(63)
        job = Job(request_id, request, seed, deadline)
        job.choices = [Choice(job, index) for index in range(max(options.n, 1))]
        for resumed in request.resume.choices:
            choice = job.choices[resumed.index]
            choice.tokens, choice.is_finished = list(resumed.generated_token_ids), resumed.finished
            choice.cum_log_probs, choice.handed_in = resumed.cum_log_probs, len(choice.tokens)
        job.events = self.answers(request.annotations)
        return job

    def answers(self, annotations: Iterable[str]) -> list[pb.EngineEvent]:
        """The events that annotations get: those that are known, with what is behind their colons."""
        asked = [annotation.partition(":") for annotation in annotations]
        known = self.config.capabilities.annotations
        return [pb.EngineEvent(event=key, comment=[value]) for key, _, value in asked if key in known]

    def check_live(self, request_id: str) -> None:
        """Raise Refusal for an id that a live request has."""
        if request_id in self.live:
            message = "request_id: is in use by a live request"
            raise Refusal(pb.ERROR_REASON_DUPLICATE_ID, message, field="request_id")

    def admit(self, job: Job) -> None:
        """Put a job into the queue, or raise Refusal."""
        self.check_live(job.request_id)
        if self.blocks_for(job) > self.settings.total_blocks:
            raise Refusal(pb.ERROR_REASON_KV_EXHAUSTED, "the request needs more KV blocks than there are")
        if len(self.waiting) >= self.settings.max_queued:
            depth = {"queue_depth": str(len(self.waiting)), "limit": str(self.settings.max_queued)}
            reason = pb.ERROR_REASON_QUEUE_FULL
            raise Refusal(reason, "the queue is full", retry_after=0.1, metadata=depth)
        self.live[job.request_id] = job
        self.enqueue(job)
        self._wake.set()

    def enqueue(self, job: Job) -> None:
        """Behind those of better priority, and of those that came sooner or are taken for such."""
        mine = self.urgency(job)
        self.waiting.insert(sum(self.urgency(other) <= mine for other in self.waiting), job)

    def urgency(self, job: Job) -> tuple[int, float]:
        """What the queue is ordered by, smallest first."""
        routing = job.request.routing
        return routing.priority, job.came_at - routing.priority_jump

    def blocks_for(self, job: Job) -> int:
        """KV blocks a job holds while it runs."""
        tokens = len(job.request.token_ids) + max(self.room(choice) for choice in job.choices)
        return math.ceil(tokens / self.settings.block_size) * len(job.choices)

    def abort(self, job: Job) -> None:
        """End every open choice with CANCELLED."""
        for choice in job.open_choices:
            self.send(job, self.cancelled(choice))
        self.finish(job)

    def fail(self, job: Job, failure: Refusal) -> None:
        """End a job with a status."""
        self.send(job, failure)
        self.release(job)

    def finish(self, job: Job) -> None:
        """End a job whose choices all have their terminals."""
        self.send(job, None)
        self.release(job)

    def send(self, job: Job, item: Item) -> None:
        """Hand something to the reader of a job."""
        job.items.put_nowait(item)

    def release(self, job: Job) -> None:
        """Give back what a job held. Idempotent."""
        if self.live.get(job.request_id) is not job:
            return
        del self.live[job.request_id]
        if job.is_running:
            self.running.remove(job)
            self.counters.kv_blocks_used -= self.freed_blocks(job)
            self.store(job)
        else:
            self.waiting.remove(job)
        self.counters.requests_finished += 1
        self.finished.append(job.request_id)

    def freed_blocks(self, job: Job) -> int:
        """KV blocks that come back when a job ends: all it held."""
        return job.blocks

    # -- steps

    async def run(self) -> None:
        """Step while there is work, wait while there is none."""
        while True:
            if not self.live:
                self._wake.clear()
                await self._wake.wait()
            self.step(time.monotonic())
            await asyncio.sleep(self.settings.step_seconds)

    def step(self, now: float) -> None:
        """Reap, schedule, one token per running choice."""
        self.counters.step += 1
        self.reap(now)
        self.schedule(now)
        for job in list(self.running):
            if now >= job.ready_at and self.has_room(job):
                self.advance_job(job)

    def has_room(self, job: Job) -> bool:
        """False for a job that has to wait for its reader."""
        return job.items.qsize() < self.settings.buffer_tokens

    def advance_job(self, job: Job) -> None:
        """One token for each choice of a job that has a slot."""
        for choice in self.with_slots(job):
            try:
                output = self.ended_before(choice) or self.advance(choice)
            except Refusal as failure:
                self.fail(job, failure)
                return
            self.send(job, output)
            self.counters.tokens_generated += len(output.token_ids)
        if not job.open_choices:
            self.finish(job)

    def reap(self, now: float) -> None:
        """End what is too late, running or queued."""
        for job in [job for job in self.live.values() if job.deadline <= now]:
            self.fail(job, Refusal(pb.ERROR_REASON_DEADLINE_EXCEEDED, "the deadline passed"))

    def schedule(self, now: float) -> None:
        """Start waiting jobs in order, as long as slots and blocks are free."""
        while self.waiting and self.fits(self.waiting[0]):
            job = self.waiting.popleft()
            job.blocks, job.is_running = self.blocks_for(job), True
            job.ready_at = now + self.settings.first_token_seconds
            job.cached_tokens = self.look_up(job)
            self.counters.kv_blocks_used += job.blocks
            self.evict()
            self.running.append(job)

    def fits(self, job: Job) -> bool:
        """True when a job can run now."""
        sequences = sum(len(self.with_slots(each)) for each in (*self.running, job))
        blocks = self.counters.kv_blocks_used + self.blocks_for(job)
        slots = self.settings.max_num_seqs * self.settings.ranks
        return sequences <= slots and blocks <= self.settings.total_blocks

    def with_slots(self, job: Job) -> list[Choice]:
        """The open choices that run: of a request with more than there are slots some wait for the others."""
        return job.open_choices[: self.settings.max_num_seqs]

    # -- prefix cache

    def block_keys(self, job: Job) -> list[BlockKey]:
        """The full blocks of a prompt; the last token is always computed."""
        prompt, size = tuple(job.request.token_ids), self.settings.block_size
        ends = range(size, len(prompt), size)
        return [(job.request.cache_salt, job.request.routing.lora_name, prompt[:end]) for end in ends]

    def is_cacheable(self, job: Job) -> bool:
        """False for jobs that neither read nor write the cache."""
        offered = self.config.capabilities.prefix_cache
        return offered and not (job.request.bypass_prefix_cache or job.request.is_probe)

    def look_up(self, job: Job) -> int:
        """Prompt tokens that are cached."""
        if not self.is_cacheable(job):
            return 0
        found = 0
        for number, key in enumerate(self.block_keys(job), 1):
            if key not in self.cache:
                break
            found = number
        self.touch(self.block_keys(job)[:found])
        return found * self.settings.block_size

    def store(self, job: Job) -> None:
        """Keep the blocks of a prompt that was computed."""
        if self.is_cacheable(job):
            self.add_blocks([key for key in self.block_keys(job) if key not in self.cache])
            self.touch(self.block_keys(job))
            self.evict()

    def add_blocks(self, keys: list[BlockKey]) -> None:
        """Cache blocks of one prompt, each the child of the one before it."""
        self.cache.update(dict.fromkeys(keys))

    def remove_block(self, key: BlockKey) -> None:
        """Drop one cached block."""
        del self.cache[key]

    def touch(self, keys: list[BlockKey]) -> None:
        """Blocks of one prompt were used: parents go after their children, so that they stay longer."""
        for key in reversed(keys):
            self.cache[key] = self.cache.pop(key)

    def evict(self) -> None:
        """Drop the cached blocks used longest ago until live requests have their room."""
        while self.cache and len(self.cache) + self.counters.kv_blocks_used > self.settings.total_blocks:
            self.remove_block(next(iter(self.cache)))

    def clear_cache(self) -> int:
        """Drop all cached blocks; returns how many there were."""
        dropped = len(self.cache)
        self.cache.clear()
        return dropped

    def forget_adapter(self, name: str) -> None:
        """Drop the cached blocks of an adapter: another one may get its name."""
        for key in [key for key in self.cache if key[1] == name]:
            self.remove_block(key)

    # -- load

    def load(self) -> pb.Load:
        """What the engine is doing."""
        load = pb.Load()
        load.CopyFrom(self.counters)
        load.running = sum(len(self.with_slots(job)) for job in self.running)
        load.waiting = len(self.waiting)
        load.waiting_tokens = sum(len(job.request.token_ids) for job in self.waiting)
        load.kv_blocks_total = self.settings.total_blocks * self.settings.ranks
        load.kv_blocks_cached = len(self.cache)
        load.state = self.state
        load.engine_lifetime_id = self.lifetime_id
        return load
