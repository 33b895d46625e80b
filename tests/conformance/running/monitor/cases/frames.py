"""Multiplexed streams that break their own rules."""

from __future__ import annotations

import grpc

from enginewire import v1 as pb
from enginewire.conformance.wire.exchange import DETAILS_KEY, Exchange
from tests.conformance.running.monitor.cases.register import breaks
from tests.conformance.running.monitor.made import frame, frames, outputs, request, status

ONE = [(1, request())]
LATE = pb.ErrorDetail(reason=pb.ERROR_REASON_DEADLINE_EXCEEDED)
PASSED = status(LATE, grpc.StatusCode.DEADLINE_EXCEEDED)


def timed(seconds: float, *came: pb.GenerateMultiplexedResponse, stream: float | None = None) -> Exchange:
    """A stream whose one request has so much time, and the stream as a whole."""
    exchange = frames(ONE, came)
    frame = exchange.sent[0].message
    assert isinstance(frame, pb.GenerateMultiplexedRequest)
    frame.submits[0].timeout.FromNanoseconds(round(seconds * 1e9))
    exchange.timeout = stream
    return exchange


@breaks("frames_can_be_read", "columns of other lengths")
def _() -> Exchange:
    return frames(ONE, [pb.GenerateMultiplexedResponse(handles=[1], token_ids=[1, 2])])


@breaks("frames_can_be_read", "a handle that was never used")
def _() -> Exchange:
    return frames(ONE, [frame(2, *outputs(request()))], None)


@breaks("steps_do_not_go_back", "5, 4")
def _() -> Exchange:
    return frames([], [pb.GenerateMultiplexedResponse(step=5), pb.GenerateMultiplexedResponse(step=4)])


@breaks("a_stream_ends_after_its_requests", "before one of them")
def _() -> Exchange:
    return frames(ONE, [frame(1, *outputs(request())[:2], accepted="r-1")])


@breaks("no_time_passes_early", "before its timeout")
def _() -> Exchange:
    return timed(3, frame(1, accepted="r-1"), frame(1, PASSED))


@breaks("no_time_passes_early", "without a timeout")
def _() -> Exchange:
    return frames(ONE, [frame(1, accepted="r-1"), frame(1, PASSED)])


@breaks("nothing_follows_the_end", "a token")
def _() -> Exchange:
    late = frame(1, pb.LLMEngineOutput(token_ids=[1], first_output_position=4))
    return frames(ONE, [frame(1, *outputs(request()), accepted="r-1"), late])


@breaks("acceptance_comes_once", "twice")
def _() -> Exchange:
    whole = frame(1, *outputs(request()), accepted="r-1")
    return frames(ONE, [frame(1, accepted="r-1"), whole])


@breaks("acceptance_comes_once", "never")
def _() -> Exchange:
    return frames(ONE, [frame(1, *outputs(request()))])


@breaks("acceptance_comes_once", "for what finds no room")
def _() -> Exchange:
    full = status(pb.ErrorDetail(reason=pb.ERROR_REASON_QUEUE_FULL), grpc.StatusCode.RESOURCE_EXHAUSTED)
    return frames(ONE, [frame(1, accepted="r-1"), frame(1, full)])


@breaks("no_stream_ends_for_want_of_room", "of one request")
def _() -> Exchange:
    full = pb.ErrorDetail(reason=pb.ERROR_REASON_QUEUE_FULL, retryable=True)
    exchange = frames(ONE, [], grpc.StatusCode.RESOURCE_EXHAUSTED)
    told = status(full, grpc.StatusCode.RESOURCE_EXHAUSTED).SerializeToString()
    exchange.trailing_metadata = ((DETAILS_KEY, told),)
    return exchange


@breaks("acceptance_names_the_request", "another")
def _() -> Exchange:
    return frames(ONE, [frame(1, *outputs(request()), accepted="r-2")])
