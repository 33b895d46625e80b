"""Refusals and other failures that do not say what they have to."""

from __future__ import annotations

import grpc

from enginewire import v1 as pb
from enginewire.conformance.wire.exchange import Exchange
from tests.conformance.running.monitor.cases.register import breaks
from tests.conformance.running.monitor.made import (
    LIFE,
    frame,
    frames,
    generated,
    outputs,
    refused,
    request,
    status,
)

INVALID = pb.ERROR_REASON_INVALID_REQUEST
CONTEXT = pb.ERROR_REASON_CONTEXT_EXCEEDED


@breaks("failures_have_details", "none")
def _() -> Exchange:
    return refused(request(), None)


@breaks("failures_have_details", "none for a full queue")
def _() -> Exchange:
    return refused(request(), None, grpc.StatusCode.RESOURCE_EXHAUSTED)


@breaks("failures_have_details", "none on a handle")
def _() -> Exchange:
    bare = status(None, grpc.StatusCode.DEADLINE_EXCEEDED)
    return frames([(1, request())], [frame(1, bare)])


@breaks("details_are_as_the_table_says", "retryable")
def _() -> Exchange:
    return refused(request(), pb.ErrorDetail(reason=CONTEXT, retryable=True))


@breaks("details_are_as_the_table_says", "another code")
def _() -> Exchange:
    return refused(request(), pb.ErrorDetail(reason=CONTEXT), grpc.StatusCode.INTERNAL)


@breaks("details_are_as_the_table_says", "no reason")
def _() -> Exchange:
    return refused(request(), pb.ErrorDetail(field="token_ids"))


@breaks("generic_tools_know_the_reason", "nothing is for them")
def _() -> Exchange:
    exchange = refused(request(), pb.ErrorDetail(reason=CONTEXT))
    ((key, _),) = exchange.trailing_metadata
    alone = status(pb.ErrorDetail(reason=CONTEXT), grpc.StatusCode.INVALID_ARGUMENT)
    del alone.details[1:]
    exchange.trailing_metadata = ((key, alone.SerializeToString()),)
    return exchange


@breaks("a_drain_says_retryable", "it does not")
def _() -> Exchange:
    draining = pb.ErrorDetail(reason=pb.ERROR_REASON_DRAINING)
    return refused(request(), draining, grpc.StatusCode.UNAVAILABLE)


@breaks("invalid_requests_have_a_field", "none")
def _() -> Exchange:
    return refused(request(), pb.ErrorDetail(reason=INVALID))


@breaks("the_status_says_what_the_call_says", "another code in it")
def _() -> Exchange:
    exchange = refused(request(), pb.ErrorDetail(reason=CONTEXT))
    ((key, _),) = exchange.trailing_metadata
    other = status(pb.ErrorDetail(reason=CONTEXT), grpc.StatusCode.NOT_FOUND)
    exchange.trailing_metadata = ((key, other.SerializeToString()),)
    return exchange


@breaks("internal_failures_have_an_id", "none")
def _() -> Exchange:
    return refused(request(), pb.ErrorDetail(reason=pb.ERROR_REASON_INTERNAL), grpc.StatusCode.INTERNAL)


@breaks("mismatches_tell_the_range", "no range")
def _() -> Exchange:
    detail = pb.ErrorDetail(reason=pb.ERROR_REASON_REVISION_MISMATCH, field="client_revision")
    return refused(request(), detail, grpc.StatusCode.FAILED_PRECONDITION)


@breaks("messages_tell_no_secrets", "a path")
def _() -> Exchange:
    return refused(request(), pb.ErrorDetail(reason=CONTEXT), text="no such thing: /home/me/model")


@breaks("refusals_come_alone", "behind a message")
def _() -> Exchange:
    exchange = refused(request(), pb.ErrorDetail(reason=CONTEXT))
    exchange.arrived = generated(request(), outputs(request())[:1]).arrived
    return exchange


@breaks("refusals_come_alone", "behind the acceptance")
def _() -> Exchange:
    detail = pb.ErrorDetail(reason=pb.ERROR_REASON_QUEUE_FULL, retryable=True)
    exchange = refused(request(), detail, grpc.StatusCode.RESOURCE_EXHAUSTED)
    exchange.initial_metadata = (("enginewire-lifetime-id", LIFE),)
    return exchange


@breaks("answers_fit_a_message", "5 MiB")
def _() -> Exchange:
    text = "CLIENT: Received message larger than max (5242880 vs. 4194304)"
    return refused(request(), None, grpc.StatusCode.RESOURCE_EXHAUSTED, text)
