"""Servers that count wrong."""

from __future__ import annotations

from collections.abc import AsyncIterator

from enginewire import v1 as pb
from enginewire.conformance.mutants import changed, each_changed, mutant
from enginewire.conformance.reference.generation.engine import BlockKey
from enginewire.conformance.reference.generation.job import Choice, Job
from enginewire.conformance.reference.refusal import Refusal, invalid
from enginewire.conformance.reference.server import Reference
from enginewire.conformance.reference.settings import without


@changed(
    Reference.usage, "usage_off_by_one", kills="USE-01", also=("RES-04/seen", "SEQ-03/seen", "USE-05/seen")
)
def usage_off_by_one(usage: pb.CompletionUsage) -> None:
    missing = min(usage.completion_tokens, 1)
    usage.completion_tokens -= missing
    usage.total_tokens -= missing


@changed(Reference.usage, "prompt_usage_wrong", kills="USE-02", also=("SEQ-03/seen", "USE-05/seen"))
def prompt_usage_wrong(usage: pb.CompletionUsage) -> None:
    usage.prompt_tokens += 1
    usage.total_tokens += 1


@mutant("a_doubled_beginning_counts_once", kills="USE-02", also=("USE-02/seen", "USE-03/seen"))
class ADoubledBeginningCountsOnce(Reference):
    def usage(self, job: Job) -> pb.CompletionUsage:
        usage, prompt = super().usage(job), job.request.token_ids
        if len(prompt) > 1 and prompt[0] == prompt[1] and prompt[0] in self.settings.eos_token_ids:
            usage.prompt_tokens -= 1
            usage.total_tokens -= 1
        return usage


@changed(Reference.usage, "total_wrong", kills="USE-03")
def total_wrong(usage: pb.CompletionUsage) -> None:
    usage.total_tokens = usage.completion_tokens


@mutant("usage_every_chunk", kills="USE-04")
class UsageEveryChunk(Reference):
    async def outputs(self, job: Job) -> AsyncIterator[pb.LLMEngineOutput]:
        async for output in super().outputs(job):
            output.completion_usage.CopyFrom(self.usage(job))
            yield output


@each_changed(Reference.outputs, "no_usage", kills="USE-04", also="USE-05/seen")
def no_usage(output: pb.LLMEngineOutput) -> None:
    output.ClearField("completion_usage")


@each_changed(Reference.outputs, "abort_no_usage", kills="USE-05")
def abort_no_usage(output: pb.LLMEngineOutput) -> None:
    if output.finish_reason == pb.FINISH_REASON_CANCELLED:
        output.ClearField("completion_usage")


@mutant("cached_gt_prompt", kills="USE-06")
class CachedGtPrompt(Reference):
    def look_up(self, job: Job) -> int:
        return super().look_up(job) * 2


@mutant("bypass_ignored", kills="USE-06")
class BypassIgnored(Reference):
    def is_cacheable(self, job: Job) -> bool:
        return not job.request.is_probe


@mutant("resets_no_cache", kills="ERR-17/prefix_cache")
class ResetsNoCache(Reference):
    settings = without("prefix_cache", "kv_events")

    def allows(self, capability: str) -> bool:
        return capability == "prefix_cache" or super().allows(capability)


@mutant("cache_never_hits", kills="USE-06")
class CacheNeverHits(Reference):
    def look_up(self, job: Job) -> int:
        return 0


@mutant("blocks_are_found_behind_any_other", kills="USE-06")
class BlocksAreFoundBehindAnyOther(Reference):
    """By their own tokens and their place; what stands before them does not count."""

    def block_keys(self, job: Job) -> list[BlockKey]:
        size = self.settings.block_size
        return [
            (salt, adapter, (len(tokens), *tokens[-size:]))
            for salt, adapter, tokens in super().block_keys(job)
        ]


@mutant("salt_is_ignored", kills="USE-07")
class SaltIsIgnored(Reference):
    def block_keys(self, job: Job) -> list[BlockKey]:
        return [("", adapter, tokens) for _, adapter, tokens in super().block_keys(job)]


@mutant("no_salt_sees_everything", kills="USE-07")
class NoSaltSeesEverything(Reference):
    def look_up(self, job: Job) -> int:
        salts = (
            [job.request.cache_salt]
            if job.request.cache_salt
            else sorted({salt for salt, _, _ in self.cache})
        )
        found = 0
        for salt in salts:
            job.request.cache_salt = salt
            found = max(found, super().look_up(job))
        return found


@mutant("salts_see_what_has_none", kills="USE-07")
class SaltsSeeWhatHasNone(Reference):
    """What has no salt is taken for everybody's."""

    def look_up(self, job: Job) -> int:
        found, salt = super().look_up(job), job.request.cache_salt
        job.request.cache_salt = ""
        shared = super().look_up(job)
        job.request.cache_salt = salt
        return max(found, shared)


@mutant("bypass_writes", kills="USE-06")
class BypassWrites(Reference):
    """Past the cache when it reads, and not when it writes."""

    def store(self, job: Job) -> None:
        is_around, job.request.bypass_prefix_cache = job.request.bypass_prefix_cache, False
        super().store(job)
        job.request.bypass_prefix_cache = is_around


@mutant("salts_are_cut", kills="USE-07")
class SaltsAreCut(Reference):
    def block_keys(self, job: Job) -> list[BlockKey]:
        return [(salt[:64], adapter, tokens) for salt, adapter, tokens in super().block_keys(job)]


@mutant("aborts_forget_what_has_ended", kills="USE-05/ended")
class AbortsForgetWhatHasEnded(Reference):
    """The usage of an abort is that of the choices it ends."""

    def abort(self, job: Job) -> None:
        for choice in job.choices:
            if choice.is_finished:
                choice.tokens = []
        super().abort(job)


@mutant("who_waits_has_nothing", kills="USE-05/queued")
class WhoWaitsHasNothing(Reference):
    """Tokens are counted from the first step on, also those that were handed in."""

    def usage(self, job: Job) -> pb.CompletionUsage:
        usage = super().usage(job)
        if not job.is_running:
            usage.total_tokens, usage.completion_tokens = usage.prompt_tokens, 0
        return usage


@mutant("no_salt_beside_an_adapter", kills="USE-07/adapter")
class NoSaltBesideAnAdapter(Reference):
    def block_keys(self, job: Job) -> list[BlockKey]:
        return [
            ("" if adapter else salt, adapter, tokens) for salt, adapter, tokens in super().block_keys(job)
        ]


@mutant("usage_beside_the_rows_of_the_prompt", kills="USE-04")
class UsageBesideTheRowsOfThePrompt(Reference):
    async def outputs(self, job: Job) -> AsyncIterator[pb.LLMEngineOutput]:
        async for output in super().outputs(job):
            if output.HasField("prompt_logprobs"):
                output.completion_usage.CopyFrom(self.usage(job))
            yield output


@mutant("failures_have_usage", kills="USE-04/failed", also="STR-08/seen")
class FailuresHaveUsage(Reference):
    def fail(self, job: Job, failure: Refusal) -> None:
        if failure.detail.reason == pb.ERROR_REASON_INVALID_REQUEST:
            position = len(job.choices[0].tokens)
            usage = self.usage(job)
            self.send(job, pb.LLMEngineOutput(first_output_position=position, completion_usage=usage))
        super().fail(job, failure)


@mutant("routing_keys_part_the_cache", kills="USE-06")
class RoutingKeysPartTheCache(Reference):
    def block_keys(self, job: Job) -> list[BlockKey]:
        key = job.request.routing.routing_key
        return [(f"{salt}/{key}", adapter, tokens) for salt, adapter, tokens in super().block_keys(job)]


@mutant("salts_are_tidied", kills="USE-07")
class SaltsAreTidied(Reference):
    def block_keys(self, job: Job) -> list[BlockKey]:
        return [(salt.strip().lower(), adapter, tokens) for salt, adapter, tokens in super().block_keys(job)]


@mutant("who_goes_on_has_no_salt", kills="USE-07")
class WhoGoesOnHasNoSalt(Reference):
    def block_keys(self, job: Job) -> list[BlockKey]:
        salt = "" if job.request.HasField("resume") else job.request.cache_salt
        return [(salt, adapter, tokens) for _, adapter, tokens in super().block_keys(job)]


class _WithoutKvEvents(Reference):
    """Its cache can be looked at through what it finds there alone."""

    settings = without("kv_events")


@mutant("a_busy_cache_is_not_emptied", kills="INF-09/reset")
class ABusyCacheIsNotEmptied(_WithoutKvEvents):
    def clear_cache(self) -> int:
        return len(self.cache) if self.running else super().clear_cache()


@mutant("an_idle_cache_is_not_emptied", kills="INF-09/reset")
class AnIdleCacheIsNotEmptied(_WithoutKvEvents):
    def clear_cache(self) -> int:
        return super().clear_cache() if self.running else 0


@mutant("a_reset_begins_another_life", kills="ERR-19/seen", traffic="INF-09/reset")
class AResetBeginsAnotherLife(_WithoutKvEvents):
    def __init__(self) -> None:
        super().__init__()
        self._resets = 0

    def clear_cache(self) -> int:
        self._resets += 1
        return super().clear_cache()

    def load(self) -> pb.Load:
        load = super().load()
        load.engine_lifetime_id += f"-{self._resets}" if self._resets else ""
        return load


@mutant("events_of_the_aborted_count", kills="USE-05")
class EventsOfTheAbortedCount(Reference):
    def cancelled(self, choice: Choice) -> pb.LLMEngineOutput:
        output = super().cancelled(choice)
        if output.HasField("completion_usage"):
            count = len(self.answers(choice.job.request.annotations))
            output.completion_usage.completion_tokens += count
            output.completion_usage.total_tokens += count
        return output


@mutant("salts_are_ascii", kills="USE-07")
class SaltsAreAscii(Reference):
    def check_sizes(self, request: pb.PreprocessedRequest) -> None:
        super().check_sizes(request)
        if not request.cache_salt.isascii():
            raise invalid("cache_salt", "has other characters", "", "ASCII")


@mutant("resets_count_what_is_held", kills="INF-09/reset")
class ResetsCountWhatIsHeld(_WithoutKvEvents):
    def clear_cache(self) -> int:
        return super().clear_cache() + sum(job.blocks for job in self.running)
