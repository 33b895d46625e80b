"""Servers on which requests get into each other's way."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

from enginewire import v1 as pb
from enginewire.conformance.mutants import mutant
from enginewire.conformance.reference.generation.job import Choice, Job
from enginewire.conformance.reference.refusal import Refusal
from enginewire.conformance.reference.server import Reference
from enginewire.conformance.reference.settings import Settings

LONG = 100
"""Requests of more output tokens are long."""

CROWD = 12
"""So many requests wait only where a check wants a crowd."""

CLOCKS_DIFFER = 0.05
"""Seconds between the deadline of a call as gRPC keeps it and as a job has it, at most."""

UNHURRIED = replace(Settings(), step_seconds=0.01)
"""What fills its slots lasts ten times as long as the bound for an answer, on a busy machine too."""


def is_short(job: Job) -> bool:
    """True for requests of few tokens."""
    return job.request.stop_conditions.max_tokens < LONG


class Crowded(Reference):
    """Something goes wrong when many requests of a middling size wait."""

    def is_crowded(self) -> bool:
        """True while they do."""
        sizes = [job.request.stop_conditions.max_tokens for job in self.waiting]
        return len(sizes) > CROWD and all(LONG // 4 < size < LONG for size in sizes)


@mutant("serial", kills="CON-01")
class Serial(Reference):
    def fits(self, job: Job) -> bool:
        return not self.running


@mutant("probes_run_alone", kills="CON-01/unlike")
class ProbesRunAlone(Reference):
    def fits(self, job: Job) -> bool:
        is_alone = not (self.running and (job.request.is_probe or self.running[0].request.is_probe))
        return is_alone and super().fits(job)


@mutant("cross_talk", kills="CON-02")
class CrossTalk(Reference):
    """With several different prompts of one size in the batch, the rows of the logits are mixed up."""

    def advance(self, choice: Choice) -> pb.LLMEngineOutput:
        output = super().advance(choice)
        size = choice.job.request.stop_conditions.max_tokens
        prompts = [
            tuple(job.request.token_ids)
            for job in self.running
            if job.request.stop_conditions.max_tokens == size
        ]
        if len(prompts) == len(set(prompts)) > 3:
            output.token_ids[0] = (output.token_ids[0] + 1) % self.config.vocab_size
        return output


@mutant("queue_deadlock", kills="CON-03")
class QueueDeadlock(Crowded):
    def fits(self, job: Job) -> bool:
        return not self.is_crowded() and super().fits(job)


@mutant("a_slot_stays_free_beside_several_choices", kills="CON-03/choices")
class ASlotStaysFreeBesideSeveralChoices(Reference):
    """As many choices as there are slots never fit. Only there: others ask for as many."""

    def fits(self, job: Job) -> bool:
        fills_all = len(job.choices) == self.settings.max_num_seqs and "CON-03" in job.request_id
        return not fills_all and super().fits(job)


@mutant("crowd_internal", kills="CON-03")
class CrowdInternal(Crowded):
    def admit(self, job: Job) -> None:
        if self.is_crowded():
            raise Refusal(pb.ERROR_REASON_INTERNAL, "too much")
        super().admit(job)


@mutant("error_kills_batch", kills=("CON-04", "MUX-12"))
class ErrorKillsBatch(Reference):
    """Whoever is too late takes the batch along, whether the engine or the transport noticed first."""

    def release(self, job: Job) -> None:
        is_late = job.is_running and time.monotonic() + CLOCKS_DIFFER > job.deadline
        is_cut = self.live.get(job.request_id) is job and bool(job.open_choices)
        super().release(job)
        if is_late and is_cut:
            for other in list(self.running):
                self.fail(other, Refusal(pb.ERROR_REASON_INTERNAL, "the batch failed"))


@mutant("who_has_nothing_to_choose_ends_the_batch", kills="CON-04")
class WhoHasNothingToChooseEndsTheBatch(Reference):
    """Only there: other checks run beside each other."""

    def fail(self, job: Job, failure: Refusal) -> None:
        super().fail(job, failure)
        is_of_lists = failure.detail.reason == pb.ERROR_REASON_INVALID_REQUEST
        if is_of_lists and "CON-04" in job.request_id:
            for other in list(self.running):
                super().fail(other, failure)


class SlowWhenFull(Reference):
    """One call waits for the engine."""

    settings = UNHURRIED

    async def wait_for_engine(self) -> None:
        while len(self.waiting) > 1:  # noqa: ASYNC110  # no event says it
            await asyncio.sleep(self.settings.step_seconds)


@mutant("info_blocked", kills="CON-05")
class InfoBlocked(SlowWhenFull):
    async def info(self) -> pb.GetEngineInfoResponse:
        await self.wait_for_engine()
        return await super().info()


@mutant("abort_blocked", kills="CON-05")
class AbortBlocked(SlowWhenFull):
    async def abort_requests(self, request: pb.AbortRequest) -> pb.AbortResponse:
        if list(request.request_ids) == ["nobody"]:
            await self.wait_for_engine()
        return await super().abort_requests(request)


@mutant("static_batching", kills=("CON-06", "BPR-02"))
class StaticBatching(Reference):
    """Its window is small, so that what has to wait for a long request does so within any deadline."""

    settings = replace(UNHURRIED, context_length=256, buffer_tokens=64)

    def fits(self, job: Job) -> bool:
        is_late = is_short(job) and any(not is_short(running) for running in self.running)
        return not is_late and super().fits(job)


@mutant("stuck_after_load", kills="CON-07")
class StuckAfterLoad(Reference):
    """A wake-up is lost when many leave the queue at once: the next request is never started."""

    def __init__(self) -> None:
        super().__init__()
        self._left = 0
        self._stuck: list[Job] = []

    def release(self, job: Job) -> None:
        # Only there: other checks cancel what waits as well.
        self._left += job in self.waiting and "CON-07" in job.request_id
        super().release(job)

    def admit(self, job: Job) -> None:
        super().admit(job)
        if self._left > 8 and len(self.live) == 1 and not self._stuck:
            self._stuck.append(job)

    def fits(self, job: Job) -> bool:
        return job not in self._stuck and super().fits(job)


@mutant("who_has_nothing_to_choose_keeps_its_blocks", kills="CON-07")
class WhoHasNothingToChooseKeepsItsBlocks(Reference):
    def __init__(self) -> None:
        super().__init__()
        self._kept = 0

    def fail(self, job: Job, failure: Refusal) -> None:
        if failure.detail.reason == pb.ERROR_REASON_INVALID_REQUEST and "CON-07" in job.request_id:
            self._kept += job.blocks
            job.blocks = 0
        super().fail(job, failure)

    def admit(self, job: Job) -> None:
        # Found again, to leave the checks that follow in peace.
        if "CON-07" not in job.request_id:
            self.counters.kv_blocks_used -= self._kept
            self._kept = 0
        super().admit(job)
