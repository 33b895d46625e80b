"""Servers whose refusals say too little, too much, or leave something behind.

Most of them do so for a request_id that is no name and for nothing else: no other requirement has an
opinion about that request.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from itertools import count

import grpc
from google.protobuf.any_pb2 import Any

from enginewire import v1 as pb
from enginewire.conformance.mutants import changed, mutant
from enginewire.conformance.reference.generation.job import Job
from enginewire.conformance.reference.refusal import Refusal, invalid
from enginewire.conformance.reference.server import Reference
from enginewire.conformance.reference.service import Call
from enginewire.conformance.wire.exchange import Metadata

Responses = AsyncIterator[pb.GenerateResponse]


class BadId(Reference):
    """A place to be wrong: `worded` may change the refusal of a bad request_id."""

    def check_request_id(self, request_id: str) -> None:
        try:
            super().check_request_id(request_id)
        except Refusal as refusal:
            raise self.worded(refusal, request_id) from None

    def worded(self, refusal: Refusal, request_id: str) -> Refusal:
        """The refusal of a bad id."""
        return refusal


@mutant("error_after_first_message", kills="ERR-11", also=("STR-07/seen", "STR-08/seen", "RES-06/seen"))
class ErrorAfterFirstMessage(Reference):
    async def generate(self, request: pb.GenerateRequest, call: Call) -> Responses:
        if " " in request.request_id:
            yield pb.GenerateResponse(request_id=request.request_id)
        async for response in super().generate(request, call):
            yield response


class _Bare(Refusal):
    def trailers(self) -> Metadata:
        return ()


@mutant("no_details", kills="ERR-12")
class NoDetails(BadId):
    def worded(self, refusal: Refusal, request_id: str) -> Refusal:
        return _Bare(pb.ERROR_REASON_INVALID_REQUEST, refusal.message)


class _WithoutErrorInfo(Refusal):
    def generic_details(self) -> Iterator[Any]:
        return (detail for detail in super().generic_details() if not detail.type_url.endswith("ErrorInfo"))


@mutant("no_error_info", kills="ERR-25")
class NoErrorInfo(BadId):
    def worded(self, refusal: Refusal, request_id: str) -> Refusal:
        return _WithoutErrorInfo(refusal.detail.reason, refusal.message, field=refusal.detail.field)


@mutant("no_error_info_without_a_field", kills="ERR-25/seen", traffic="ABO-06")
class NoErrorInfoWithoutAField(Reference):
    def admit(self, job: Job) -> None:
        try:
            super().admit(job)
        except Refusal as refusal:
            refusal.__class__ = _WithoutErrorInfo
            raise


class _WithoutBadRequest(Refusal):
    def generic_details(self) -> Iterator[Any]:
        return (detail for detail in super().generic_details() if not detail.type_url.endswith("BadRequest"))


@mutant("no_bad_request", kills="ERR-25")
class NoBadRequest(BadId):
    def worded(self, refusal: Refusal, request_id: str) -> Refusal:
        return _WithoutBadRequest(refusal.detail.reason, refusal.message, field=refusal.detail.field)


class _WithoutPushback(Refusal):
    def trailers(self) -> Metadata:
        return super().trailers()[:1]


@mutant("no_pushback", kills="ERR-26")
class NoPushback(Reference):
    def admit(self, job: Job) -> None:
        try:
            super().admit(job)
        except Refusal as refusal:
            raise _impatient(_WithoutPushback, refusal) from None


class _WithoutRetryInfo(Refusal):
    def generic_details(self) -> Iterator[Any]:
        return (detail for detail in super().generic_details() if not detail.type_url.endswith("RetryInfo"))


@mutant("no_retry_info", kills="ERR-26")
class NoRetryInfo(Reference):
    def admit(self, job: Job) -> None:
        try:
            super().admit(job)
        except Refusal as refusal:
            raise _impatient(_WithoutRetryInfo, refusal) from None


def _impatient(kind: type[Refusal], refusal: Refusal) -> Refusal:
    """The same refusal, of a kind that tells its time in fewer ways."""
    detail = refusal.detail
    wait = detail.retry_after.ToTimedelta().total_seconds() if detail.HasField("retry_after") else None
    facts = dict(detail.metadata)
    return kind(detail.reason, refusal.message, field=detail.field, retry_after=wait, metadata=facts)


@mutant("huge_details", kills="ERR-12")
class HugeDetails(BadId):
    def worded(self, refusal: Refusal, request_id: str) -> Refusal:
        refusal.detail.metadata["hint"] = "x" * 4200
        return refusal


@mutant("details_repeat_what_is_refused", kills="ERR-12")
class DetailsRepeatWhatIsRefused(BadId):
    def worded(self, refusal: Refusal, request_id: str) -> Refusal:
        refusal.detail.metadata["got"] = request_id
        return refusal


@mutant("details_repeat_models", kills="ERR-12")
class DetailsRepeatModels(Reference):
    def check_model(self, name: str) -> None:
        try:
            super().check_model(name)
        except Refusal as refusal:
            refusal.detail.metadata["model"] = name
            raise


@mutant("details_without_reason", kills="ERR-12")
class DetailsWithoutReason(BadId):
    def worded(self, refusal: Refusal, request_id: str) -> Refusal:
        refusal.detail.ClearField("reason")
        return refusal


@mutant("details_without_field", kills="ERR-12")
class DetailsWithoutField(BadId):
    def worded(self, refusal: Refusal, request_id: str) -> Refusal:
        refusal.detail.ClearField("field")
        return refusal


@mutant("invalid_is_retryable", kills="ERR-12")
class InvalidIsRetryable(BadId):
    def worded(self, refusal: Refusal, request_id: str) -> Refusal:
        refusal.detail.retryable = True
        return refusal


@mutant("flaky_code", kills="ERR-13", also="ERR-12/seen")
class FlakyCode(BadId):
    def __init__(self) -> None:
        super().__init__()
        self._numbers = count()

    def worded(self, refusal: Refusal, request_id: str) -> Refusal:
        if " " in request_id and next(self._numbers) % 2:
            refusal.code = grpc.StatusCode.FAILED_PRECONDITION
        return refusal


@mutant("reject_leaks", kills="ERR-14")
class RejectLeaks(BadId):
    """Holds a block from a refusal to the next request that is accepted."""

    held = 0

    def worded(self, refusal: Refusal, request_id: str) -> Refusal:
        self.held += 1
        self.counters.kv_blocks_used += 1
        return refusal

    def admit(self, job: Job) -> None:
        self.counters.kv_blocks_used -= self.held
        self.held = 0
        super().admit(job)


@mutant("reject_fills_the_cache", kills="ERR-14")
class RejectFillsTheCache(BadId):
    def worded(self, refusal: Refusal, request_id: str) -> Refusal:
        self.add_blocks([("", "", (len(self.cache),) * self.settings.block_size)])
        return refusal


@mutant("overload_internal", kills="ERR-16", also="ERR-12/seen")
class OverloadInternal(Reference):
    def admit(self, job: Job) -> None:
        try:
            super().admit(job)
        except Refusal as refusal:
            if refusal.detail.reason == pb.ERROR_REASON_QUEUE_FULL:
                refusal.code = grpc.StatusCode.INTERNAL
            raise


@mutant("overload_keeps_the_id", kills="ABO-06/refused")
class OverloadKeepsTheId(Reference):
    """The id is written down before there is room, and nobody takes it back."""

    def __init__(self) -> None:
        super().__init__()
        self._kept: set[str] = set()

    def admit(self, job: Job) -> None:
        if job.request_id in self._kept:
            raise Refusal(pb.ERROR_REASON_DUPLICATE_ID, "request_id: is in use", field="request_id")
        try:
            super().admit(job)
        except Refusal as refusal:
            if refusal.detail.reason == pb.ERROR_REASON_QUEUE_FULL:
                self._kept.add(job.request_id)
            raise


@mutant("overload_not_retryable", kills="ERR-16", also="ERR-12/seen")
class OverloadNotRetryable(Reference):
    def admit(self, job: Job) -> None:
        try:
            super().admit(job)
        except Refusal as refusal:
            if refusal.detail.reason == pb.ERROR_REASON_QUEUE_FULL:
                refusal.detail.retryable = False
            raise


@changed(Reference.engine_config, "overload_without_end", kills="ERR-16")
def overload_without_end(config: pb.EngineConfig) -> None:
    config.limits.max_num_queued_reqs //= 2


@mutant("leaks_traceback", kills="ERR-18")
class LeaksTraceback(BadId):
    def worded(self, refusal: Refusal, request_id: str) -> Refusal:
        trace = 'Traceback (most recent call last): File "server", line 12, in check'
        return Refusal(pb.ERROR_REASON_INVALID_REQUEST, trace, field="request_id")


@mutant("leaks_class_name", kills="ERR-18")
class LeaksClassName(BadId):
    def worded(self, refusal: Refusal, request_id: str) -> Refusal:
        return Refusal(pb.ERROR_REASON_INVALID_REQUEST, "ValueError: not an id", field="request_id")


@mutant("leaks_path", kills="ERR-18")
class LeaksPath(BadId):
    def worded(self, refusal: Refusal, request_id: str) -> Refusal:
        refusal.detail.metadata["rules"] = "/opt/engine/rules.toml"
        return refusal


@mutant("leaks_prompt", kills="ERR-18")
class LeaksPrompt(Reference):
    def validate(self, request: pb.GenerateRequest) -> None:
        try:
            super().validate(request)
        except Refusal as refusal:
            if refusal.detail.field != "request_id":
                raise
            text = f"request_id: is not an id, in a request for {list(request.request.token_ids)}"
            raise Refusal(pb.ERROR_REASON_INVALID_REQUEST, text, field="request_id") from None


@mutant("dies_after_bad_input", kills="ERR-19")
class DiesAfterBadInput(Reference):
    """Gives another token after a bad request; a server that dies would fail everything."""

    is_hurt = False

    def check_request_id(self, request_id: str) -> None:
        self.is_hurt = self.is_hurt or len(request_id) > 128
        super().check_request_id(request_id)
        if self.is_hurt and "ERR-19" in request_id:
            raise Refusal(pb.ERROR_REASON_ENGINE_DEAD, "the engine died")


@mutant("restarts_after_bad_input", kills="ERR-19")
class RestartsAfterBadInput(BadId):
    lives = 0

    def worded(self, refusal: Refusal, request_id: str) -> Refusal:
        self.lives += 1
        return refusal

    def load(self) -> pb.Load:
        load = super().load()
        load.engine_lifetime_id += f"-{self.lives}"
        return load


@mutant("overload_is_finished", kills="ABO-10/without-room")
class OverloadIsFinished(Reference):
    def admit(self, job: Job) -> None:
        try:
            super().admit(job)
        except Refusal as refusal:
            if refusal.detail.reason == pb.ERROR_REASON_QUEUE_FULL:
                self.finished.append(job.request_id)
            raise


@mutant("overload_over_streams_says_less", kills="MUX-04/without-room")
class OverloadOverStreamsSaysLess(Reference):
    def submitted(self, submit: pb.Submit, call: Call) -> Job:
        try:
            return super().submitted(submit, call)
        except Refusal as refusal:
            if refusal.detail.reason == pb.ERROR_REASON_QUEUE_FULL:
                raise Refusal(refusal.detail.reason, refusal.message) from None
            raise


@mutant("parsers_name_their_errors", kills="ERR-18")
class ParsersNameTheirErrors(Reference):
    def check_sizes(self, request: pb.PreprocessedRequest) -> None:
        super().check_sizes(request)
        try:
            json.loads(request.extra_args or b"{}")
        except ValueError as error:
            raise invalid("extra_args", repr(error), "", "JSON") from None
