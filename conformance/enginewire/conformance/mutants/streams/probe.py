"""Servers whose probes are refused, made up, or leave something behind."""

from __future__ import annotations

from collections.abc import AsyncIterator

from enginewire import v1 as pb
from enginewire.conformance.mutants import mutant
from enginewire.conformance.mutants.streams.metadata import RANKS
from enginewire.conformance.reference.generation.job import Choice, Job
from enginewire.conformance.reference.refusal import Refusal, invalid
from enginewire.conformance.reference.server import Reference
from enginewire.conformance.reference.service import Call

Responses = AsyncIterator[pb.GenerateResponse]


@mutant("probe_needs_model", kills="PRB-01")
class ProbeNeedsModel(Reference):
    def check_model(self, name: str) -> None:
        super().check_model(name)
        self._has_model = bool(name)

    def check_role(self, request: pb.PreprocessedRequest) -> None:
        super().check_role(request)
        if request.is_probe and not self._has_model:
            raise invalid("model", "is missing", "", self.config.model)


@mutant("probe_fills_the_window", kills="PRB-01")
class ProbeFillsTheWindow(Reference):
    def room(self, choice: Choice) -> int:
        request = choice.job.request
        window = self.config.context_length - len(request.token_ids)
        limited = request.stop_conditions.HasField("max_tokens")
        return super().room(choice) if limited else window


@mutant("synthetic_probe", kills="PRB-02", also="STR-07/seen")
class SyntheticProbe(Reference):
    async def generate(self, request: pb.GenerateRequest, call: Call) -> Responses:
        if not request.request.is_probe:
            async for response in super().generate(request, call):
                yield response
            return
        self.validate(request)
        prompt = len(request.request.token_ids)
        usage = pb.CompletionUsage(prompt_tokens=prompt, completion_tokens=1, total_tokens=prompt + 1)
        length = pb.FINISH_REASON_LENGTH
        output = pb.LLMEngineOutput(token_ids=[1], finish_reason=length, completion_usage=usage)
        yield pb.GenerateResponse(output=output, request_id=request.request_id)


@mutant(
    "probe_swallow_error",
    kills="PRB-03",
    also=("ERR-02/seen", "INF-04/seen", "PRB-02/seen", "STR-07/seen", "USE-04/seen", "LIM-03/seen"),
)
class ProbeSwallowError(Reference):
    async def generate(self, request: pb.GenerateRequest, call: Call) -> Responses:
        try:
            async for response in super().generate(request, call):
                yield response
        except Refusal:
            if not request.request.is_probe:
                raise
            output = pb.LLMEngineOutput(finish_reason=pb.FINISH_REASON_LENGTH)
            yield pb.GenerateResponse(output=output, request_id=request.request_id)


class CutProbesEndNormally(Reference):
    """Base: whatever ends a probe, running or waiting, its choices have reached their limit."""

    def is_taken_for_whole(self, job: Job) -> bool:
        """Only there: others look at the ends of probes as well."""
        return job.request.is_probe and "PRB-03" in job.request_id

    def end_normally(self, job: Job) -> None:
        """LENGTH for each choice, and OK."""
        for choice in job.open_choices:
            position = len(choice.tokens)
            output = pb.LLMEngineOutput(index=choice.index, first_output_position=position)
            self.end(choice, output, pb.FINISH_REASON_LENGTH)
            self.send(job, output)
        self.finish(job)


@mutant("aborted_probes_end_normally", kills="PRB-03/running", also="INF-04/seen")
class AbortedProbesEndNormally(CutProbesEndNormally):
    def abort(self, job: Job) -> None:
        if self.is_taken_for_whole(job) and job.is_running:
            self.end_normally(job)
        else:
            super().abort(job)


@mutant("late_probes_end_normally", kills="PRB-03/queued", also=("INF-04/seen", "PRB-02/seen"))
class LateProbesEndNormally(CutProbesEndNormally):
    def fail(self, job: Job, failure: Refusal) -> None:
        if self.is_taken_for_whole(job) and not job.is_running:
            self.end_normally(job)
        else:
            super().fail(job, failure)


@mutant("probe_pollutes_cache", kills="PRB-04")
class ProbePollutesCache(Reference):
    def is_cacheable(self, job: Job) -> bool:
        return self.config.capabilities.prefix_cache and not job.request.bypass_prefix_cache


@mutant("long_probes_are_cached", kills="PRB-04")
class LongProbesAreCached(Reference):
    """A probe is known by its single token."""

    def is_cacheable(self, job: Job) -> bool:
        request = job.request
        if not request.is_probe or request.stop_conditions.max_tokens < 2:
            return super().is_cacheable(job)
        return self.config.capabilities.prefix_cache and not request.bypass_prefix_cache


class TwoRanks(Reference):
    """Correct: two data-parallel ranks that share one scheduler."""

    settings = RANKS

    def rank_of(self, job: Job) -> int:
        """The rank that runs a job."""
        return job.request.routing.dp_rank

    def load(self) -> pb.Load:
        load = super().load()
        for rank in range(self.settings.ranks):
            jobs = [job for job in self.running if self.rank_of(job) == rank]
            running = sum(len(job.open_choices) for job in jobs)
            load.ranks.add(dp_rank=rank, running=running, kv_blocks_total=self.settings.total_blocks)
        return load


@mutant("probe_rank0_only", kills="PRB-05")
class ProbeRank0Only(TwoRanks):
    def rank_of(self, job: Job) -> int:
        return 0 if job.request.is_probe else super().rank_of(job)


@mutant("probe_of_rank_refused", kills="PRB-05")
class ProbeOfRankRefused(TwoRanks):
    def check_gates(self, request: pb.PreprocessedRequest) -> None:
        super().check_gates(request)
        if request.is_probe and request.routing.dp_rank:
            raise invalid("routing.dp_rank", "is not probed", request.routing.dp_rank, "0")
