"""Frames of a multiplexed stream: what holds for a frame, a handle, and the stream as a whole."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Final

import grpc

from enginewire import v1 as pb
from enginewire.conformance.running.monitor.facts import Answer, Seen, messages_of
from enginewire.conformance.running.monitor.failures import EARLY
from enginewire.conformance.running.monitor.handles import Handles
from enginewire.conformance.running.monitor.invariant import of_answers, of_calls, of_streams
from enginewire.conformance.wire.violation import expect, expect_equal

LATE: Final = grpc.StatusCode.DEADLINE_EXCEEDED.value[0]
EARLIEST: Final = 0.9
"""Of a timeout: two clocks do not go alike."""


@of_streams("MUX-10")
def frames_can_be_read(handles: Handles) -> None:
    """Columns agree, and each handle was used."""
    if handles.unreadable:
        raise handles.unreadable
    expect(not handles.unknown, "a frame names a handle that was never used", seen=handles.unknown[:1])


@of_calls("MUX-10")
def steps_do_not_go_back(seen: Seen) -> None:
    """From frame to frame."""
    steps = [frame.step for frame in messages_of(seen.exchange, pb.GenerateMultiplexedResponse)]
    for earlier, later in pairwise(steps):
        expect(later >= earlier, "the step of a frame went back", expected=f"at least {earlier}", seen=later)


@of_streams("MUX-08")
def a_stream_ends_after_its_requests(handles: Handles) -> None:
    """With OK, when all of them have ended."""
    if handles.exchange.is_ok:
        left = [use.answer.request.request_id for use in handles.all() if not use.has_ended]
        expect(not left, "a multiplexed stream ended with OK before its requests", seen=left[:1])


@of_streams("MUX-04")
def no_stream_ends_for_want_of_room(handles: Handles) -> None:
    """That is said of a request, on its handle."""
    detail = handles.exchange.detail
    is_full = bool(handles.uses and detail and detail.reason == pb.ERROR_REASON_QUEUE_FULL)
    message = "a multiplexed stream ends because a request finds no room"
    expect(not is_full, message, expected="a status of its handle", seen=handles.exchange.status)


@of_streams("MUX-12")
def no_time_passes_early(handles: Handles) -> None:
    """That of a request, or else of the whole stream; a request without has none of its own."""
    stream = handles.exchange
    for use in handles.all():
        if use.status and use.status.code == LATE:
            left = stream.started_at + stream.timeout - use.begins_at if stream.timeout else math.inf
            due = min(left, math.inf if use.timeout is None else use.timeout)
            seen = use.failed_at - use.begins_at
            message = "a request ended with DEADLINE_EXCEEDED before its timeout"
            expect(seen >= EARLIEST * due, message, expected=f"after {due:.2f} s", seen=f"after {seen:.2f} s")


@of_answers("MUX-02")
def nothing_follows_the_end(answer: Answer) -> None:
    """Of a handle."""
    expect(not answer.late, "something of a handle came after its end", seen=answer.late[:1])


@of_answers("MUX-03")
def acceptance_comes_once(answer: Answer) -> None:
    """Not after the frame with the first output, never for what is refused, and with the engine's life."""
    if not answer.is_multiplexed:
        return
    expect(len(answer.accepted) <= 1, "a request was accepted more than once", seen=len(answer.accepted))
    expect(not answer.is_early, "something of a handle came before the frame with Accepted")
    if answer.is_ok:
        expect_equal(len(answer.accepted), 1, "a request was served, and not accepted exactly once")
    for accepted in answer.accepted:
        expect(accepted.engine_lifetime_id, "Accepted names no life of the engine")
    if answer.detail and answer.detail.reason in EARLY:
        seen = pb.ErrorReason.Name(answer.detail.reason)
        expect(not answer.accepted, "a request that is refused was accepted first", seen=seen)


@of_answers("MDT-04")
def acceptance_names_the_request(answer: Answer) -> None:
    """Byte for byte."""
    for accepted in answer.accepted:
        expect_equal(accepted.request_id, answer.request.request_id, "Accepted carries another request_id")
