"""Statuses other than OK: what they carry, and what they must not tell.

The gRPC library makes some statuses itself. What it may have made is not judged.
"""

from __future__ import annotations

from typing import Final

import grpc
from google.protobuf.message import Message

from enginewire import v1 as pb
from enginewire.conformance.running.monitor.facts import Failure
from enginewire.conformance.running.monitor.invariant import of_failures
from enginewire.conformance.wire.exchange import LIFETIME_KEY
from enginewire.conformance.wire.foreign import google_rpc, health_types
from enginewire.conformance.wire.methods import method_of
from enginewire.conformance.wire.multiplexed import NAME as MULTIPLEXED
from enginewire.conformance.wire.secrets import SECRETS
from enginewire.conformance.wire.violation import expect, expect_equal

MOST_DETAIL_BYTES: Final = 4096
SURELY_SMALL: Final = 16 * 1024
"""Bytes of a request that no library takes for too large."""
SURELY_FEW: Final = 2048
"""Bytes of metadata that no library takes for too many."""

SAID_BY_LIBRARIES: Final = ("RST_STREAM", "Internal error from Core")
"""In the text of a status: the connection broke, or our own library cannot take what came."""

CORE: Final = frozenset(
    {
        "EngineService.Generate",
        "EngineService.Abort",
        "EngineService.Drain",
        "DiscoveryService.GetEngineInfo",
        "DiscoveryService.GetLoad",
    }
)
"""RPCs that no server may leave out to its library."""

Code = grpc.StatusCode

OUTSIDE: Final = frozenset({Code.CANCELLED, Code.DEADLINE_EXCEEDED, Code.UNAVAILABLE})
"""What a library says of a call that ended at its own end, or without a connection."""

TABLE: Final[dict[int, tuple[frozenset[Code], bool]]] = {
    pb.ERROR_REASON_INVALID_REQUEST: (frozenset({Code.INVALID_ARGUMENT}), False),
    pb.ERROR_REASON_CONTEXT_EXCEEDED: (frozenset({Code.INVALID_ARGUMENT}), False),
    pb.ERROR_REASON_UNSUPPORTED: (frozenset({Code.UNIMPLEMENTED}), False),
    pb.ERROR_REASON_MODEL_NOT_FOUND: (frozenset({Code.NOT_FOUND}), False),
    pb.ERROR_REASON_DUPLICATE_ID: (frozenset({Code.ALREADY_EXISTS}), False),
    pb.ERROR_REASON_QUEUE_FULL: (frozenset({Code.RESOURCE_EXHAUSTED}), True),
    pb.ERROR_REASON_KV_EXHAUSTED: (frozenset({Code.RESOURCE_EXHAUSTED}), False),
    pb.ERROR_REASON_TOO_LARGE: (frozenset({Code.RESOURCE_EXHAUSTED}), False),
    pb.ERROR_REASON_ROLE_MISMATCH: (frozenset({Code.FAILED_PRECONDITION}), False),
    pb.ERROR_REASON_REVISION_MISMATCH: (frozenset({Code.FAILED_PRECONDITION}), False),
    pb.ERROR_REASON_DRAINING: (frozenset({Code.UNAVAILABLE}), True),
    pb.ERROR_REASON_NOT_STARTED: (frozenset({Code.UNAVAILABLE}), True),
    pb.ERROR_REASON_ENGINE_DEAD: (frozenset({Code.UNAVAILABLE}), True),
    pb.ERROR_REASON_STUCK: (frozenset({Code.UNAVAILABLE}), True),
    pb.ERROR_REASON_SLOW_CONSUMER: (frozenset({Code.RESOURCE_EXHAUSTED}), False),
    pb.ERROR_REASON_DEADLINE_EXCEEDED: (frozenset({Code.DEADLINE_EXCEEDED}), False),
    pb.ERROR_REASON_AUTH: (frozenset({Code.UNAUTHENTICATED, Code.PERMISSION_DENIED}), False),
    pb.ERROR_REASON_HANDOFF_INVALID: (frozenset({Code.FAILED_PRECONDITION}), False),
    pb.ERROR_REASON_INTERNAL: (frozenset({Code.INTERNAL}), False),
    pb.ERROR_REASON_CANCELLED: (frozenset({Code.CANCELLED}), False),
    pb.ERROR_REASON_ADAPTER_EXISTS: (frozenset({Code.ALREADY_EXISTS}), False),
    pb.ERROR_REASON_ADAPTER_LIMIT: (frozenset({Code.RESOURCE_EXHAUSTED}), False),
    pb.ERROR_REASON_ADAPTER_IN_USE: (frozenset({Code.FAILED_PRECONDITION}), False),
}
"""Codes and `retryable` of each reason that an engine server gives, as docs/contract.md has them."""

EARLY: Final = frozenset(
    {
        pb.ERROR_REASON_CONTEXT_EXCEEDED,
        pb.ERROR_REASON_UNSUPPORTED,
        pb.ERROR_REASON_MODEL_NOT_FOUND,
        pb.ERROR_REASON_DUPLICATE_ID,
        pb.ERROR_REASON_QUEUE_FULL,
        pb.ERROR_REASON_KV_EXHAUSTED,
        pb.ERROR_REASON_ROLE_MISMATCH,
        pb.ERROR_REASON_REVISION_MISMATCH,
        pb.ERROR_REASON_NOT_STARTED,
    }
)
"""Reasons that are known before acceptance; INVALID_REQUEST may show itself later, where lists conflict."""


@of_failures("ERR-12")
def failures_have_details(failure: Failure) -> None:
    """Those that no library can have made."""
    if _is_the_servers_own(failure):
        seen = f"{failure.code.name}: {failure.text}"
        expect(failure.detail, "the status carries no ErrorDetail", seen=seen)


@of_failures("ERR-12", needs=("ERR-12",))
def details_are_as_the_table_says(failure: Failure) -> None:
    """A reason, its code, and whether to try again."""
    detail = failure.detail
    if detail is None or not failure.is_known:
        return
    expect(detail.reason, "the ErrorDetail has no reason", seen=detail)
    if detail.reason in TABLE and not _is_of_health(failure):
        codes, retryable = TABLE[detail.reason]
        reason = pb.ErrorReason.Name(detail.reason)
        expected = " or ".join(sorted(code.name for code in codes))
        expect(failure.code in codes, f"{reason} has another code", expected=expected, seen=failure.code.name)
        if detail.reason != pb.ERROR_REASON_DRAINING:
            expect_equal(detail.retryable, retryable, f"{reason} does not say retryable as it must")
    size = sum(entry.ByteSize() for entry in failure.status.details) if failure.status else 0
    limit = f"under {MOST_DETAIL_BYTES} bytes"
    expect(size < MOST_DETAIL_BYTES, "the details of a status are too large", expected=limit, seen=size)


@of_failures("ERR-25", needs=("ERR-12",))
def generic_tools_know_the_reason(failure: Failure) -> None:
    """Whether a field is at fault or not."""
    if failure.detail and failure.status and failure.is_known:
        info = google_rpc.unpacked(failure.status, "ErrorInfo")
        expected = google_rpc.name_of(failure.detail.reason)
        expect_equal(info and info.reason, expected, "the google.rpc.ErrorInfo of a status is another one")


@of_failures("DRN-08", needs=("ERR-12",))
def a_drain_says_retryable(failure: Failure) -> None:
    """That one is a SHOULD."""
    detail = failure.detail
    is_drain = detail is not None and detail.reason == pb.ERROR_REASON_DRAINING
    expect(not is_drain or (detail and detail.retryable), "DRAINING does not say retryable", seen=detail)


@of_failures("ERR-12", needs=("ERR-12",))
def invalid_requests_have_a_field(failure: Failure) -> None:
    """The one that is at fault."""
    detail = failure.detail
    is_generate = failure.exchange.method == "EngineService.Generate"
    if detail and failure.is_known and is_generate and isinstance(failure.exchange.request, Message):
        is_named = detail.field or detail.reason != pb.ERROR_REASON_INVALID_REQUEST
        expect(is_named, "INVALID_REQUEST names no field", seen=failure.text)


@of_failures("ERR-12", needs=("ERR-12",))
def the_status_says_what_the_call_says(failure: Failure) -> None:
    """The code in the details is that of the call."""
    if failure.status and failure.detail and failure.is_known and not failure.is_event:
        expect_equal(failure.status.code, failure.code.value[0], "the Status in the details has another code")


@of_failures("ERR-22")
def internal_failures_have_an_id(failure: Failure) -> None:
    """In the detail and in the message."""
    detail = failure.detail
    if detail and detail.reason == pb.ERROR_REASON_INTERNAL:
        error_id = detail.metadata.get("error_id", "")
        expect(error_id, "a status with reason INTERNAL has no error_id in its metadata", seen=detail)
        message = "the message does not have the id"
        expect(error_id in failure.text, message, expected=error_id, seen=failure.text)


@of_failures("VER-02")
def mismatches_tell_the_range(failure: Failure) -> None:
    """Both ends of it."""
    detail = failure.detail
    if detail and detail.reason == pb.ERROR_REASON_REVISION_MISMATCH:
        for name in ("minimum_client_revision", "maximum_client_revision"):
            is_told = name in detail.metadata and detail.metadata[name].isdecimal()
            expect(is_told, f"REVISION_MISMATCH does not tell {name}", seen=detail)


@of_failures("ERR-18")
def messages_tell_no_secrets(failure: Failure) -> None:
    """Neither the text nor the details."""
    if failure.detail is None:
        return
    said = f"{failure.text}\n{failure.detail}"
    for what, pattern in SECRETS.items():
        found = pattern.search(said)
        around = said[max(found.start() - 40, 0) :][:120] if found else ""
        expect(not found, f"a message contains {what}", seen=around)


@of_failures("ERR-11")
def refusals_come_alone(failure: Failure) -> None:
    """Before any message, and before the metadata that says accepted."""
    detail, exchange = failure.detail, failure.exchange
    if failure.is_event or detail is None or exchange.method != "EngineService.Generate":
        return
    if detail.reason in EARLY:
        expect(not exchange.arrived, "a message came before the refusal", seen=len(exchange.arrived))
        accepted = any(key == LIFETIME_KEY for key, _ in exchange.initial_metadata)
        expect(not accepted, "the initial metadata came before the refusal", expected="a status alone")


@of_failures("MSG-03")
def answers_fit_a_message(failure: Failure) -> None:
    """What the kit's library refuses to read is larger than its default limit."""
    too_large = failure.text.startswith("CLIENT: Received message larger than max")
    expect(not too_large or failure.detail, "a response message is too large", seen=failure.text)


def _is_of_health(failure: Failure) -> bool:
    """A library may serve it, with codes of its own."""
    return failure.exchange.method in (health_types.CHECK, health_types.WATCH)


def _is_the_servers_own(failure: Failure) -> bool:
    """False for what a library may say, before or after the server sees the call."""
    exchange = failure.exchange
    if failure.is_event:
        return True
    if not failure.is_known or failure.code in OUTSIDE or not method_of(exchange.method):
        return False
    if exchange.method not in CORE and failure.code is Code.UNIMPLEMENTED:
        return False
    is_of_a_library = exchange.is_compressed or any(said in failure.text for said in SAID_BY_LIBRARIES)
    return not (_is_of_health(failure) or is_of_a_library) and _is_a_small_message(failure)


def _is_a_small_message(failure: Failure) -> bool:
    exchange = failure.exchange
    if exchange.method == MULTIPLEXED:
        requests = [sent.message for sent in exchange.sent]
    else:
        requests = [exchange.request] if exchange.request is not None else []
    if not requests or not all(isinstance(request, Message) for request in requests):
        return False
    size = max(request.ByteSize() for request in requests if isinstance(request, Message))
    metadata = sum(len(key) + len(value) for key, value in exchange.metadata)
    is_received = "Received message larger than max" not in failure.text
    return size <= SURELY_SMALL and metadata <= SURELY_FEW and is_received
