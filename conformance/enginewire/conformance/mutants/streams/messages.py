"""Servers that something too large or too often can hurt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import grpc
from google.protobuf.message import Message

from enginewire import v1 as pb
from enginewire.conformance.checks.streams.messages import GZIP, NOBODYS
from enginewire.conformance.mutants import mutant
from enginewire.conformance.reference.generation.job import Job
from enginewire.conformance.reference.refusal import Refusal, invalid
from enginewire.conformance.reference.server import Reference
from enginewire.conformance.reference.service import Call
from enginewire.conformance.wire.exchange import Metadata
from enginewire.conformance.wire.proxy import Proxy

MIB = 1024 * 1024


@mutant("recv_limit_too_small", kills="MSG-01")
class RecvLimitTooSmall(Reference):
    """Takes a full window as most clients encode it, and no other."""

    def parsed(self, request_class: type[Message], payload: bytes) -> Any:
        if payload.count(b"\x10") > 1000:
            raise Refusal(pb.ERROR_REASON_TOO_LARGE, "the message is too large")
        return super().parsed(request_class, payload)


class AnySize(Reference):
    """A place to be wrong about messages that are too large: `parsed` sees them."""

    def server_options(self) -> list[tuple[str, int]]:
        others = [option for option in super().server_options() if "max_receive" not in option[0]]
        return [*others, ("grpc.max_receive_message_length", -1)]


@mutant("oversize_served", kills="MSG-02")
class OversizeServed(AnySize):
    pass


@mutant("oversize_is_invalid", kills="MSG-02")
class OversizeIsInvalid(AnySize):
    def parsed(self, request_class: type[Message], payload: bytes) -> Any:
        if len(payload) > self.settings.max_request_bytes:
            raise invalid("", "is too large", len(payload), "less")
        return super().parsed(request_class, payload)


@mutant("oversize_kills_conn", kills="MSG-02")
class OversizeKillsConn(AnySize):
    """What was beside it on the connection is lost."""

    def parsed(self, request_class: type[Message], payload: bytes) -> Any:
        if len(payload) > self.settings.max_request_bytes:
            for job in list(self.live.values()):
                self.fail(job, Refusal(pb.ERROR_REASON_ENGINE_DEAD, "the connection is gone"))
            raise Refusal(pb.ERROR_REASON_TOO_LARGE, "the message is too large")
        return super().parsed(request_class, payload)


@mutant("giant_message", kills="MSG-03")
class GiantMessage(Reference):
    def advance_job(self, job: Job) -> None:
        wanted = job.request.output_options
        if wanted.stream_interval < 2 or not wanted.HasField("logprobs") or job.completion_tokens:
            super().advance_job(job)
            return
        output = self.advance(job.choices[0])
        output.engine_data = b"{" + bytes(5 * MIB) + b"}"
        self.send(job, output)


@mutant("aborts_of_any_length_are_answered", kills="MSG-03/lists", also="MSG-03/seen")
class AbortsOfAnyLengthAreAnswered(Reference):
    most_ids = 1 << 20


@mutant("aborts_of_a_thousand_ids_are_refused", kills="ABO-04/many")
class AbortsOfAThousandIdsAreRefused(Reference):
    most_ids = 1000


@mutant("vectors_of_any_number_are_answered", kills="MSG-03/lists", also="MSG-03/seen")
class VectorsOfAnyNumberAreAnswered(Reference):
    """Of a model with larger ones."""

    def check_inputs(self, count: int, size: int) -> None:
        """Whatever they are."""

    def vector(self, tokens: Sequence[int]) -> list[float]:
        return [value / 8 for value in super().vector(tokens)] * 64


@mutant("gzip_internal", kills="MSG-04")
class GzipInternal(Reference):
    def server_options(self) -> list[tuple[str, int]]:
        return [*super().server_options(), ("grpc.compression_enabled_algorithms_bitset", 1)]


@mutant("any_compression_served", kills="MSG-07")
class AnyCompressionServed(Reference):
    """Takes an unknown name for gzip's."""

    async def serve(self, target: str) -> grpc.aio.Server:
        server = await super().serve(f"{target}.behind")
        self._front = await Proxy.open(f"{target}.behind", at=target)
        self._front.rename(NOBODYS, GZIP)
        return server

    async def shut_down(self, server: grpc.aio.Server) -> None:
        await self._front.close()
        await super().shut_down(server)


@mutant("tires_of_calls", kills="MSG-05")
class TiresOfCalls(Reference):
    calls = 0

    async def info(self) -> pb.GetEngineInfoResponse:
        self.calls += 1
        if self.calls > 800:
            self.calls = 0
            raise Refusal(pb.ERROR_REASON_INTERNAL, "too many open files")
        return await super().info()


class _Counts(Reference):
    """How many watch."""

    watching = 0

    async def watch_load(self, request: pb.WatchLoadRequest) -> Any:
        self.watching += 1
        try:
            async for response in super().watch_load(request):
                yield response
        finally:
            self.watching -= 1

    @property
    def has_too_many(self) -> bool:
        return self.watching > 64


@mutant("fd_leak", kills="MSG-05")
class FdLeak(_Counts):
    async def watch_load(self, request: pb.WatchLoadRequest) -> Any:
        async for response in super().watch_load(request):
            if self.has_too_many:
                raise Refusal(pb.ERROR_REASON_INTERNAL, "too many open files")
            yield response


@mutant("many_connections_leave_no_room", kills="MSG-05")
class ManyConnectionsLeaveNoRoom(_Counts):
    """Each that watches counts as a caller, of whom only so many are let in."""

    def validate(self, request: pb.GenerateRequest) -> None:
        if self.has_too_many:
            raise Refusal(pb.ERROR_REASON_QUEUE_FULL, "too many connections", retry_after=1.0)
        super().validate(request)


@mutant("status_text_too_long", kills="MSG-06")
class StatusTextTooLong(Reference):
    """Only there: clients with the usual limits would see another status instead."""

    def validate(self, request: pb.GenerateRequest) -> None:
        try:
            super().validate(request)
        except Refusal as refusal:
            if "MSG-06" not in request.request_id:
                raise
            message = refusal.message + ". Please look at the manual." * 300
            raise _ShortDetails(
                pb.ERROR_REASON_INVALID_REQUEST, message, field=refusal.detail.field
            ) from None


class _ShortDetails(Refusal):
    def trailers(self) -> Metadata:
        return Refusal(self.detail.reason, "too long", field=self.detail.field).trailers()


@mutant("headers_too_large", kills="MSG-06")
class HeadersTooLarge(Reference):
    async def accept(self, job: Job, call: Call) -> None:
        if "MSG-06" in job.request_id:
            await call.context.send_initial_metadata((("x-notes", "x" * 8200),))
        else:
            await super().accept(job, call)


@mutant("unknown_names_come_back_whole", kills="MSG-06/long-texts")
class UnknownNamesComeBackWhole(Reference):
    def check_model(self, name: str) -> None:
        try:
            super().check_model(name)
        except Refusal as refusal:
            message = f"{refusal.message}, got {name}"
            raise _ShortDetails(refusal.detail.reason, message, field=refusal.detail.field) from None


@mutant("the_largest_message_is_too_large", kills="MSG-02")
class TheLargestMessageIsTooLarge(Reference):
    """What is advertised is meant to hold a head too."""

    def server_options(self) -> list[tuple[str, int]]:
        limit = ("grpc.max_receive_message_length", self.settings.max_request_bytes - 5)
        return [limit, *(option for option in super().server_options() if option[0] != limit[0])]
