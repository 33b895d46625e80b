"""Servers that lose traces, or tell in them what they should not."""

from __future__ import annotations

import re
import secrets
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, Final

from enginewire import v1 as pb
from enginewire.conformance.mutants import mutant
from enginewire.conformance.reference.generation.job import Job
from enginewire.conformance.reference.refusal import Refusal
from enginewire.conformance.reference.service import Call
from enginewire.conformance.reference.variants.traced import Metadata, Trace, Traced

EVERYWHERE: Final = ("MDT-02", "MDT-02/choices", "MDT-02/multiplexed", "MDT-02/submits", "MDT-02/embedded")


@mutant("traces_begin_anew", kills=EVERYWHERE)
class TracesBeginAnew(Traced):
    pattern = re.compile("(never)(like)(this)")


@mutant("the_callers_span_is_forgotten", kills=(*EVERYWHERE, "TRC-05"))
class TheCallersSpanIsForgotten(Traced):
    """Its spans are in the right trace, and nobody's children."""

    def spans(self, trace: Trace) -> list[Any]:
        return super().spans(replace(trace, parent_id=b""))


@mutant(
    "submits_have_the_trace_of_their_stream",
    kills=("MDT-02/multiplexed", "MDT-02/submits", "TRC-02", "TRC-05"),
)
class SubmitsHaveTheTraceOfTheirStream(Traced):
    def metadata_of(self, submit: pb.Submit, call: Call) -> Metadata:
        return call.metadata


@mutant("submits_have_the_trace_of_the_first", kills="MDT-02/submits")
class SubmitsHaveTheTraceOfTheFirst(Traced):
    def __init__(self) -> None:
        super().__init__()
        self._first: dict[int, Metadata] = {}

    def metadata_of(self, submit: pb.Submit, call: Call) -> Metadata:
        return self._first.setdefault(id(call), super().metadata_of(submit, call))


@mutant("embeddings_have_no_spans", kills="MDT-02/embedded")
class EmbeddingsHaveNoSpans(Traced):
    async def embed(self, request: pb.EmbedRequest, call: Call) -> pb.EmbedResponse:
        return await super(Traced, self).embed(request, call)


@mutant("any_version_of_a_trace_is_read", kills="TRC-01")
class AnyVersionOfATraceIsRead(Traced):
    pattern = re.compile("[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")


@mutant("traces_may_go_on_with_anything", kills="TRC-01")
class TracesMayGoOnWithAnything(Traced):
    pattern = re.compile("00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2}).*")


@mutant("everything_is_sampled", kills="TRC-02")
class EverythingIsSampled(Traced):
    def is_told(self, trace: Trace) -> bool:
        return True


@mutant("refusals_are_told_in_a_trace_of_their_own", kills=("TRC-02", "TRC-05"))
class RefusalsAreToldInATraceOfTheirOwn(Traced):
    """Whoever refuses has not read the metadata yet."""

    async def generate(self, request: pb.GenerateRequest, call: Call) -> AsyncIterator[pb.GenerateResponse]:
        try:
            async for response in super().generate(request, call):
                yield response
        except Refusal:
            await self.export(self.spans(self.trace((), [])))
            raise


@mutant("what_is_aborted_is_told", kills="TRC-02")
class WhatIsAbortedIsTold(Traced):
    """So that whoever looks for the reason finds it."""

    def __init__(self) -> None:
        super().__init__()
        self._aborted = set[str]()

    async def abort_requests(self, request: pb.AbortRequest) -> pb.AbortResponse:
        self._aborted.update(request.request_ids)
        return await super().abort_requests(request)

    def is_told(self, trace: Trace) -> bool:
        return trace.request_id in self._aborted or super().is_told(trace)


@mutant("submits_have_no_state", kills="TRC-03")
class SubmitsHaveNoState(Traced):
    """Of the metadata of a Submit it knows the trace alone."""

    def metadata_of(self, submit: pb.Submit, call: Call) -> Metadata:
        return [pair for pair in super().metadata_of(submit, call) if pair[0] == "traceparent"]


@mutant("tracestate_is_dropped", kills="TRC-03")
class TracestateIsDropped(Traced):
    def spans(self, trace: Trace) -> list[Any]:
        return super().spans(replace(trace, state=""))


@mutant("spans_tell_the_prompt", kills="TRC-04")
class SpansTellThePrompt(Traced):
    """As a list of numbers."""

    def spans(self, trace: Trace) -> list[Any]:
        spans = super().spans(trace)
        values = spans[0].attributes.add(key="prompt").value.array_value.values
        for token in trace.tokens:
            values.add(int_value=token)
        return spans


@mutant("spans_tell_metadata", kills="TRC-04")
class SpansTellMetadata(Traced):
    def spans(self, trace: Trace) -> list[Any]:
        spans = super().spans(trace)
        spans[1].events.add(name=f"called with {trace.metadata}")
        return spans


@mutant("spans_tell_why_they_are_refused", kills="TRC-04")
class SpansTellWhyTheyAreRefused(Traced):
    """In the words of the status, which name the value."""

    async def generate(self, request: pb.GenerateRequest, call: Call) -> AsyncIterator[pb.GenerateResponse]:
        try:
            async for response in super().generate(request, call):
                yield response
        except Refusal as why:
            trace = self.trace(call.metadata, list(request.request.token_ids))
            if self.is_told(trace):
                spans = self.spans(trace)
                for span in spans:
                    span.status.message = f"{why}: got {list(request.request.token_ids)}"
                await self.export(spans)
            raise


@mutant("parts_are_on_their_own", kills="TRC-05")
class PartsAreOnTheirOwn(Traced):
    """Each in a trace that begins with it."""

    def spans(self, trace: Trace) -> list[Any]:
        decode, whole = super().spans(trace)
        decode.trace_id, decode.parent_span_id = secrets.token_bytes(16), b""
        return [decode, whole]


@mutant("parents_are_nobody", kills="TRC-05")
class ParentsAreNobody(Traced):
    def spans(self, trace: Trace) -> list[Any]:
        decode, whole = super().spans(trace)
        decode.parent_span_id = secrets.token_bytes(8)
        return [decode, whole]


@mutant("spans_have_no_duration", kills="TRC-05")
class SpansHaveNoDuration(Traced):
    """It gives a length where the protocol wants a time."""

    def spans(self, trace: Trace) -> list[Any]:
        spans = super().spans(trace)
        for span in spans:
            span.end_time_unix_nano -= span.start_time_unix_nano
        return spans


class _Unbegun(Traced):
    """Gives what never began the time that stands where it should have begun, if `counts` says so."""

    def __init__(self) -> None:
        super().__init__()
        self._unbegun = set[str]()

    def release(self, job: Job) -> None:
        if not job.is_running and self.counts():
            self._unbegun.add(job.request_id)
        super().release(job)

    def counts(self) -> bool:
        return True

    def spans(self, trace: Trace) -> list[Any]:
        decode, whole = super().spans(trace)
        if trace.request_id in self._unbegun:
            decode.end_time_unix_nano = 1
        return [decode, whole]


@mutant("what_never_began_ends_before_it_begins", kills="TRC-05")
class WhatNeverBeganEndsBeforeItBegins(_Unbegun):
    """Its begin is 0."""


@mutant("what_leaves_a_full_engine_ends_before_it_begins", kills="TRC-05/queued")
class WhatLeavesAFullEngineEndsBeforeItBegins(_Unbegun):
    """It is told by whoever looks for slots."""

    def counts(self) -> bool:
        return len(self.running) >= self.settings.max_num_seqs


@mutant("the_end_waits_for_the_collector", kills="TRC-06")
class TheEndWaitsForTheCollector(Traced):
    async def ended_trace(self, trace: Trace) -> None:
        if self.is_told(trace):
            await self.export(self.spans(trace))
