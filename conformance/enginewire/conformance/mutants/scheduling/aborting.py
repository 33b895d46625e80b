"""Servers that abort something else, or in another way."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from itertools import takewhile

from enginewire import v1 as pb
from enginewire.conformance.mutants import changed, mutant
from enginewire.conformance.reference.generation.job import Job
from enginewire.conformance.reference.refusal import Refusal
from enginewire.conformance.reference.server import Reference
from enginewire.conformance.reference.service import Call

LOST_EVERY = 64
"""Aborts after which a block is lost: other checks make fewer."""

MOMENT_SECONDS = 0.1


@mutant("abort_noop", kills="ABO-01")
class AbortNoop(Reference):
    def abort(self, job: Job) -> None:
        """Say so only."""


@changed(Reference.cancelled, "abort_as_stop", kills="ABO-01", also="STP-02/seen")
def abort_as_stop(output: pb.LLMEngineOutput) -> None:
    output.finish_reason = pb.FINISH_REASON_STOP


@mutant("abort_as_status", kills="ABO-01")
class AbortAsStatus(Reference):
    def abort(self, job: Job) -> None:
        self.fail(job, Refusal(pb.ERROR_REASON_CANCELLED, "it was aborted"))


@mutant("abort_first_choice_only", kills="ABO-01", also="STR-02/seen")
class AbortFirstChoiceOnly(Reference):
    def abort(self, job: Job) -> None:
        self.send(job, self.cancelled(job.open_choices[0]))
        self.finish(job)


class AbortsOthers(Reference):
    """One id stands for several."""

    def abort_id(self, request_id: str) -> pb.AbortOutcome.ValueType:
        outcome = super().abort_id(request_id)
        for job in list(self.live.values()):
            if self.is_meant(job.request_id, request_id):
                self.abort(job)
        return outcome

    def is_meant(self, other: str, named: str) -> bool:
        """True for ids that are taken for the named one."""
        raise NotImplementedError


@mutant("abort_by_prefix", kills="ABO-02")
class AbortByPrefix(AbortsOthers):
    def is_meant(self, other: str, named: str) -> bool:
        return other.startswith(f"{named}-")


@mutant("abort_takes_parts", kills="ABO-02/parts")
class AbortTakesParts(AbortsOthers):
    def is_meant(self, other: str, named: str) -> bool:
        return other.startswith(f"{named}.")


@mutant("abort_ignores_case", kills="ABO-02")
class AbortIgnoresCase(AbortsOthers):
    def is_meant(self, other: str, named: str) -> bool:
        return other.casefold() == named.casefold()


@mutant("abort_all", kills="ABO-02")
class AbortAll(AbortsOthers):
    """Every request of the same caller, whose ids differ in their number."""

    def is_meant(self, other: str, named: str) -> bool:
        return other.rpartition("-")[0] == named.rpartition("-")[0]


@mutant("abort_unknown_ok", kills="ABO-03")
class AbortUnknownOk(Reference):
    def abort_id(self, request_id: str) -> pb.AbortOutcome.ValueType:
        outcome = super().abort_id(request_id)
        return pb.ABORT_OUTCOME_FINISHED if outcome == pb.ABORT_OUTCOME_UNKNOWN else outcome


@mutant("abort_twice_internal", kills="ABO-04")
class AbortTwiceInternal(Reference):
    def abort_id(self, request_id: str) -> pb.AbortOutcome.ValueType:
        if request_id in self.finished:
            raise Refusal(pb.ERROR_REASON_INTERNAL, "there is no such request any more")
        return super().abort_id(request_id)


@mutant("abort_twice_aborted", kills="ABO-04")
class AbortTwiceAborted(Reference):
    def abort_id(self, request_id: str) -> pb.AbortOutcome.ValueType:
        outcome = super().abort_id(request_id)
        return pb.ABORT_OUTCOME_ABORTED if outcome == pb.ABORT_OUTCOME_FINISHED else outcome


@mutant("abort_ends_at_a_stranger", kills="ABO-04")
class AbortEndsAtAStranger(Reference):
    """What stands behind an id that is not known is not looked at."""

    async def abort_requests(self, request: pb.AbortRequest) -> pb.AbortResponse:
        names = list(request.request_ids)
        known = list(takewhile(lambda name: name in self.live or name in self.finished, names)) or names[:1]
        response = await super().abort_requests(pb.AbortRequest(request_ids=known, all=request.all))
        for name in names[len(known) :]:
            response.results.add(request_id=name, outcome=pb.ABORT_OUTCOME_UNKNOWN)
        return response


@mutant("abort_answers_once", kills="ABO-04")
class AbortAnswersOnce(Reference):
    async def abort_requests(self, request: pb.AbortRequest) -> pb.AbortResponse:
        response = await super().abort_requests(request)
        unique = {result.request_id: result for result in response.results}
        return pb.AbortResponse(results=unique.values())


@mutant("abort_queued_ignored", kills="ABO-05")
class AbortQueuedIgnored(Reference):
    def abort(self, job: Job) -> None:
        if job.is_running:
            super().abort(job)


@mutant("dup_id_overwrites", kills="ABO-06")
class DupIdOverwrites(Reference):
    def admit(self, job: Job) -> None:
        if earlier := self.live.get(job.request_id):
            self.abort(earlier)
        super().admit(job)


@mutant("dup_id_served", kills="ABO-06", also="STR-07/seen")
class DupIdServed(Reference):
    def admit(self, job: Job) -> None:
        if job.request_id in self.live:
            job.request_id += "-again"
        super().admit(job)


@mutant("id_used_up", kills="ABO-06")
class IdUsedUp(Reference):
    def admit(self, job: Job) -> None:
        if job.request_id in self.finished:
            raise Refusal(pb.ERROR_REASON_DUPLICATE_ID, "request_id: was used before", field="request_id")
        super().admit(job)


class _KnowsWhatWasAborted(Reference):
    def __init__(self) -> None:
        super().__init__()
        self.aborted = set[str]()

    def abort(self, job: Job) -> None:
        self.aborted.add(job.request_id)
        super().abort(job)


@mutant("aborted_ids_stay_aborted", kills="ABO-06/aborted")
class AbortedIdsStayAborted(_KnowsWhatWasAborted):
    def admit(self, job: Job) -> None:
        super().admit(job)
        if job.request_id in self.aborted:
            self.abort(job)


@mutant("an_id_is_aborted_once", kills="ABO-06/aborted")
class AnIdIsAbortedOnce(_KnowsWhatWasAborted):
    def abort_id(self, request_id: str) -> pb.AbortOutcome.ValueType:
        if request_id in self.aborted and request_id in self.live:
            return pb.ABORT_OUTCOME_FINISHED
        return super().abort_id(request_id)


@mutant("late_aborts_wait_for_the_next", kills="ABO-06/aborted")
class LateAbortsWaitForTheNext(Reference):
    """An abort that finds its request ended is kept, like one that comes before it."""

    def abort_id(self, request_id: str) -> pb.AbortOutcome.ValueType:
        outcome = super().abort_id(request_id)
        if outcome == pb.ABORT_OUTCOME_FINISHED:
            self.aborted_early.append(request_id)
        return outcome


@mutant("tokens_after_cancel", kills=("ABO-07", "SEQ-02/aborted"), also=("STR-03/seen", "MUX-02/seen"))
class TokensAfterCancel(Reference):
    async def outputs(self, job: Job) -> AsyncIterator[pb.LLMEngineOutput]:
        async for output in super().outputs(job):
            yield output
            if output.finish_reason == pb.FINISH_REASON_CANCELLED:
                yield pb.LLMEngineOutput(index=output.index, token_ids=[1])


@mutant("kv_leak_1_block", kills="ABO-08")
class KvLeakOneBlock(Reference):
    def __init__(self) -> None:
        super().__init__()
        self._aborts = self._lost = 0

    def freed_blocks(self, job: Job) -> int:
        is_cut = bool(job.open_choices) or job.completion_tokens < self.room(job.choices[0])
        lost = self.lost_of(job) if is_cut and "ABO-08" in job.request_id else 0
        self._lost += lost
        return super().freed_blocks(job) - lost

    def lost_of(self, job: Job) -> int:
        """How many blocks of a request that was aborted."""
        self._aborts += 1
        return int(self._aborts % LOST_EVERY == 0)

    def admit(self, job: Job) -> None:
        # Found again, to leave the checks that follow in peace.
        if "ABO-08" not in job.request_id:
            self.counters.kv_blocks_used -= self._lost
            self._lost = 0
        super().admit(job)


@mutant("aborts_keep_cached_blocks", kills="ABO-08")
class AbortsKeepCachedBlocks(KvLeakOneBlock):
    """Those that the request found in the cache."""

    def lost_of(self, job: Job) -> int:
        return job.cached_tokens // self.settings.block_size


@mutant("abort_of_nothing_is_all", kills="ABO-09", also="ABO-04/seen")
class AbortOfNothingIsAll(Reference):
    async def abort_requests(self, request: pb.AbortRequest) -> pb.AbortResponse:
        return await super().abort_requests(request if request.request_ids else pb.AbortRequest(all=True))


@mutant("abort_takes_both", kills="ABO-09")
class AbortTakesBoth(Reference):
    async def abort_requests(self, request: pb.AbortRequest) -> pb.AbortResponse:
        if request.request_ids:
            request.all = False
        return await super().abort_requests(request)


@mutant("early_abort_is_forgotten", kills=("ABO-11", "ABO-11/embed"))
class EarlyAbortIsForgotten(Reference):
    async def abort_requests(self, request: pb.AbortRequest) -> pb.AbortResponse:
        response = await super().abort_requests(request)
        self.aborted_early.clear()
        return response


@mutant("refused_ids_are_finished", kills="ABO-10")
class RefusedIdsAreFinished(Reference):
    def validate(self, request: pb.GenerateRequest) -> None:
        try:
            super().validate(request)
        except Refusal:
            self.finished.append(request.request_id)
            raise


@mutant("queued_aborts_end_one_choice", kills="ABO-05", also=("STR-02/seen", "USE-04/seen"))
class QueuedAbortsEndOneChoice(Reference):
    """Who waits has nothing to show of its choices yet."""

    def abort(self, job: Job) -> None:
        if job.is_running:
            super().abort(job)
        else:
            self.send(job, self.cancelled(job.open_choices[0]))
            self.finish(job)


@mutant("late_waiters_keep_their_ids", kills="ABO-06/late")
class LateWaitersKeepTheirIds(Reference):
    """Ids are freed where slots are."""

    def __init__(self) -> None:
        super().__init__()
        self._kept: set[str] = set()

    def release(self, job: Job) -> None:
        # Whoever notices a deadline first, the call or the engine.
        if not job.is_running and job.deadline - time.monotonic() < MOMENT_SECONDS:
            self._kept.add(job.request_id)
        super().release(job)

    def admit(self, job: Job) -> None:
        if job.request_id in self._kept:
            raise Refusal(pb.ERROR_REASON_DUPLICATE_ID, "request_id: is in use", field="request_id")
        super().admit(job)


@mutant("multiplexed_ids_are_not_found", kills="ABO-01/multiplexed")
class MultiplexedIdsAreNotFound(Reference):
    """Abort knows the calls of Generate alone."""

    def __init__(self) -> None:
        super().__init__()
        self._of_streams: set[str] = set()

    def submitted(self, submit: pb.Submit, call: Call) -> Job:
        job = super().submitted(submit, call)
        self._of_streams.add(job.request_id)
        return job

    def abort_id(self, request_id: str) -> pb.AbortOutcome.ValueType:
        is_hidden = request_id in self._of_streams and request_id in self.live
        return pb.ABORT_OUTCOME_UNKNOWN if is_hidden else super().abort_id(request_id)


@mutant("gathered_tokens_are_dropped", kills="ABO-07", also=("STR-06/seen", "USE-05/seen"))
class GatheredTokensAreDropped(Reference):
    """An abort ends a choice between two outputs, and what was to be the next one is counted and gone."""

    async def outputs(self, job: Job) -> AsyncIterator[pb.LLMEngineOutput]:
        held = list[pb.LLMEngineOutput]()
        async for output in super().outputs(job):
            if output.finish_reason != pb.FINISH_REASON_CANCELLED:
                held.append(output)
                if len(held) < job.request.output_options.stream_interval and not output.finish_reason:
                    continue
                output = held.pop()
                for each in held:
                    yield each
            held.clear()
            yield output


@mutant("who_came_behind_its_abort_is_finished", kills="ABO-10")
class WhoCameBehindItsAbortIsFinished(Reference):
    def check_abort(self, request_id: str) -> None:
        if request_id in self.aborted_early:
            self.finished.append(request_id)
        super().check_abort(request_id)
