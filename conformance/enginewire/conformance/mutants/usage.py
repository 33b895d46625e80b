"""Servers that count wrong."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

from enginewire import v1 as pb
from enginewire.conformance.mutants import mutant
from enginewire.conformance.reference.job import Job
from enginewire.conformance.reference.server import Reference
from enginewire.conformance.reference.settings import CAPABILITIES, Settings


@mutant("usage_off_by_one", kills="USE-01")
class UsageOffByOne(Reference):
    def usage(self, job: Job) -> pb.CompletionUsage:
        usage = super().usage(job)
        missing = min(usage.completion_tokens, 1)
        usage.completion_tokens -= missing
        usage.total_tokens -= missing
        return usage


@mutant("prompt_usage_wrong", kills="USE-02")
class PromptUsageWrong(Reference):
    def usage(self, job: Job) -> pb.CompletionUsage:
        usage = super().usage(job)
        usage.prompt_tokens += 1
        usage.total_tokens += 1
        return usage


@mutant("total_wrong", kills="USE-03")
class TotalWrong(Reference):
    def usage(self, job: Job) -> pb.CompletionUsage:
        usage = super().usage(job)
        usage.total_tokens = usage.completion_tokens
        return usage


@mutant("usage_every_chunk", kills="USE-04")
class UsageEveryChunk(Reference):
    async def outputs(self, job: Job) -> AsyncIterator[pb.LLMEngineOutput]:
        async for output in super().outputs(job):
            output.completion_usage.CopyFrom(self.usage(job))
            yield output


@mutant("no_usage", kills="USE-04")
class NoUsage(Reference):
    async def outputs(self, job: Job) -> AsyncIterator[pb.LLMEngineOutput]:
        async for output in super().outputs(job):
            output.ClearField("completion_usage")
            yield output


@mutant("abort_no_usage", kills="USE-05")
class AbortNoUsage(Reference):
    async def outputs(self, job: Job) -> AsyncIterator[pb.LLMEngineOutput]:
        async for output in super().outputs(job):
            if output.finish_reason == pb.FINISH_REASON_CANCELLED:
                output.ClearField("completion_usage")
            yield output


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
    settings = replace(Settings(), capabilities=tuple(set(CAPABILITIES) - {"prefix_cache", "kv_events"}))

    def allows(self, capability: str) -> bool:
        return capability == "prefix_cache" or super().allows(capability)


@mutant("cache_never_hits", kills="USE-06")
class CacheNeverHits(Reference):
    def look_up(self, job: Job) -> int:
        return 0
