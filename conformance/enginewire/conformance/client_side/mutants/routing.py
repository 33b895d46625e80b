"""Backends that lose or change what is between caller and engine: events, hints and traces."""

from __future__ import annotations

from collections.abc import AsyncIterator

from enginewire import v1 as pb
from enginewire.conformance.client_side.mutants import client_mutant
from enginewire.conformance.client_side.reference.backend import CONTEXT, ReferenceBackend, Request
from enginewire.conformance.client_side.stage.turn import TWINS


@client_mutant("events_are_dropped", kills="EVT-05")
class EventsAreDropped(ReferenceBackend):
    def event(self, event: pb.EngineEvent) -> pb.Annotated | None:
        return None


@client_mutant("events_without_their_ids", kills="EVT-05")
class EventsWithoutTheirIds(ReferenceBackend):
    def event(self, event: pb.EngineEvent) -> pb.Annotated | None:
        return pb.Annotated(event=event.event, comment=event.comment)


@client_mutant("events_without_their_empty_lines", kills="EVT-05")
class EventsWithoutTheirEmptyLines(ReferenceBackend):
    def event(self, event: pb.EngineEvent) -> pb.Annotated | None:
        item = super().event(event)
        if item:
            item.comment[:] = filter(None, item.comment)
        return item


@client_mutant("events_come_first", kills="EVT-05")
class EventsComeFirst(ReferenceBackend):
    async def answer(
        self, asked: pb.BackendServiceGenerateRequest, request: Request, context: CONTEXT
    ) -> AsyncIterator[pb.Annotated]:
        if not asked.request.annotations:
            async for item in super().answer(asked, request, context):
                yield item
            return
        items = [item async for item in super().answer(asked, request, context)]
        for item in sorted(items, key=lambda item: item.HasField("data")):
            yield item


@client_mutant("worker_hints_ignored", kills="RTG-01")
class WorkerHintsIgnored(ReferenceBackend):
    def check_workers(self, routing: pb.RoutingHints) -> None:
        pass


@client_mutant("worker_0_is_nobody", kills="RTG-01")
class Worker0IsNobody(ReferenceBackend):
    def check_workers(self, routing: pb.RoutingHints) -> None:
        named = pb.RoutingHints()
        named.CopyFrom(routing)
        if not routing.backend_instance_id:
            named.ClearField("backend_instance_id")
        super().check_workers(named)


@client_mutant("allowed_workers_ignored", kills="RTG-01")
class AllowedWorkersIgnored(ReferenceBackend):
    def check_workers(self, routing: pb.RoutingHints) -> None:
        named = pb.RoutingHints()
        named.CopyFrom(routing)
        named.ClearField("allowed_worker_ids")
        super().check_workers(named)


@client_mutant("opaque_fields_of_any_size", kills="CLI-41")
class OpaqueFieldsOfAnySize(ReferenceBackend):
    def check_opaque(self, part: pb.PreprocessedRequest) -> None:
        pass


@client_mutant("opaque_texts_of_any_length", kills="CLI-41")
class OpaqueTextsOfAnyLength(ReferenceBackend):
    def check_opaque(self, part: pb.PreprocessedRequest) -> None:
        shortened = pb.PreprocessedRequest(annotations=[each[:1] for each in part.annotations])
        super().check_opaque(shortened)


@client_mutant("passes_on_any_key", kills="CLI-42")
class PassesOnAnyKey(ReferenceBackend):
    def metadata(self, generate: pb.GenerateRequest, context: CONTEXT) -> tuple[tuple[str, str], ...]:
        given = {str(key): str(value) for key, value in context.invocation_metadata() or () if key in TWINS}
        return tuple({**dict(super().metadata(generate, context)), **given}.items())


@client_mutant("attempts_are_not_linked", kills="RTG-02")
class AttemptsAreNotLinked(ReferenceBackend):
    def link(self, trace: str) -> pb.TraceLink:
        return pb.TraceLink()


@client_mutant("link_swaps_trace_and_span", kills="RTG-02")
class LinkSwapsTraceAndSpan(ReferenceBackend):
    def link(self, trace: str) -> pb.TraceLink:
        link = super().link(trace)
        return pb.TraceLink(trace_id=link.span_id, span_id=link.trace_id)


@client_mutant("annotations_are_asked_again", kills=("EVT-05/continued", "EVT-05/begun-again"))
class AnnotationsAreAskedAgain(ReferenceBackend):
    def unanswered(self, request: Request) -> list[str]:
        return list(request.part.annotations)


@client_mutant("without_tokens_nothing_was_answered", kills="EVT-05/begun-again")
class WithoutTokensNothingWasAnswered(ReferenceBackend):
    def unanswered(self, request: Request) -> list[str]:
        return super().unanswered(request) if request.has_delivered else list(request.part.annotations)
