"""RPCs other than generation: their answers are complete, and the same each time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

import grpc

from enginewire import v1 as pb
from enginewire.conformance.running.monitor.facts import Seen, loads_of, messages_of
from enginewire.conformance.running.monitor.invariant import of_calls
from enginewire.conformance.wire.exchange import LIFETIME_KEY, Metadata
from enginewire.conformance.wire.foreign import health_types
from enginewire.conformance.wire.foreign.health_types import NO_SERVICE
from enginewire.conformance.wire.violation import expect, expect_equal

CLIENT_LIMIT: Final = 4 * 1024 * 1024
MOST_METADATA: Final = 8 * 1024
ENTRY_OVERHEAD: Final = 32

OWN_KEYS: Final = ("enginewire-", "endpoint-load-metrics")
"""What begins so tells of the engine: of the contract, and of reports of load."""

NAME: Final = 8
"""Characters: a shorter one stands in many a text by chance."""

INFO: Final = "DiscoveryService.GetEngineInfo"
STARTED: Final = (pb.ENGINE_STATE_READY, pb.ENGINE_STATE_DRAINING, pb.ENGINE_STATE_STOPPED)

ENDS: Final = (pb.DRAIN_STATE_DRAINED, pb.DRAIN_STATE_TIMED_OUT)


@of_calls("MSG-03")
def messages_are_small(seen: Seen) -> None:
    """Each under the default limit of clients."""
    largest = max((arrived.size for arrived in seen.exchange.arrived), default=0)
    limit = f"under {CLIENT_LIMIT} bytes"
    expect(largest < CLIENT_LIMIT, "a response message is too large", expected=limit, seen=largest)


@of_calls("MSG-06")
def metadata_is_small(seen: Seen) -> None:
    """Headers and trailers each; the text of a status travels as metadata too."""
    text = (("grpc-message", seen.exchange.text),)
    for entries in (seen.exchange.initial_metadata, (*seen.exchange.trailing_metadata, *text)):
        size = _metadata_bytes(entries)
        limit = f"at most {MOST_METADATA} bytes"
        expect(size <= MOST_METADATA, "the metadata of a call is too large", expected=limit, seen=size)


@of_calls("INF-03")
def facts_stay_the_same(seen: Seen) -> None:
    """As they were at the start of the run."""
    for info in messages_of(seen.exchange, pb.GetEngineInfoResponse):
        if seen.info.ByteSize():
            expect_equal(info, seen.info, "GetEngineInfo answers differ")


@of_calls("INF-01")
def facts_are_told_in_every_state(seen: Seen) -> None:
    """Once the engine has started, as an earlier load told."""
    if seen.exchange.method == INFO and seen.info.ByteSize() and _is_refused_for_its_state(seen):
        has_started = any(load.state in STARTED for load in seen.before.values())
        message = "GetEngineInfo is refused by an engine that has started"
        detail = seen.exchange.detail or pb.ErrorDetail()
        is_early = detail.reason == pb.ERROR_REASON_NOT_STARTED and not has_started
        expect(is_early, message, expected="OK", seen=seen.exchange.status)


@of_calls("WLD-01")
def the_load_is_sent_in_every_state(seen: Seen) -> None:
    """To whoever watches it, at once."""
    if isinstance(seen.exchange.request, pb.WatchLoadRequest) and not seen.exchange.arrived:
        message = "a watch of the load is refused for the state of the engine"
        expect(not _is_refused_for_its_state(seen), message, expected="a load", seen=seen.exchange.status)


@of_calls("HLT-08")
def no_service_has_no_health(seen: Seen) -> None:
    """Whatever the state of the server."""
    exchange = seen.exchange
    if exchange.method == health_types.CHECK and exchange.request == health_types.request(NO_SERVICE):
        message = "Check of a service that is not served has a status"
        expect(not exchange.is_ok, message, expected="NOT_FOUND", seen=exchange.status)


def _is_refused_for_its_state(seen: Seen) -> bool:
    """By the server itself; a connection that is lost has no details."""
    return seen.exchange.code is grpc.StatusCode.UNAVAILABLE and seen.exchange.detail is not None


@of_calls("SEC-04")
def who_may_not_call_learns_nothing(seen: Seen) -> None:
    """Neither from the contract's own metadata nor from what names the server, wherever it stands.

    Other metadata may be that of a library or of a proxy. A key may end within a call.
    """
    exchange, detail = seen.exchange, seen.exchange.detail
    if detail is None or detail.reason != pb.ERROR_REASON_AUTH or exchange.arrived:
        return
    metadata = (*exchange.initial_metadata, *exchange.trailing_metadata)
    told = [key for key, _ in metadata if key.startswith(OWN_KEYS)]
    expect(not told, "a call that is refused for its key gets more than the status", seen=told)
    names = {name for name in (seen.info.engine_lifetime_id, seen.info.instance_id) if len(name) >= NAME}
    said = [exchange.text, str(detail), *(str(value) for _, value in metadata)]
    told = sorted(name for name in names if any(name in text for text in said))
    expect(not told, "a call that is refused for its key is told who the server is", seen=told)


@of_calls("ERR-19")
def the_server_lives_on(seen: Seen) -> None:
    """Every load and every answer names the life that the run began with."""
    life = seen.info.engine_lifetime_id
    for told in _lives(seen) if life else ():
        expect_equal(told, life, "engine_lifetime_id is another one than at the start of the run")


@of_calls("ABO-04")
def aborts_have_an_outcome_per_id(seen: Seen) -> None:
    """In the order of the ids; one that is named twice may have one or two."""
    request = seen.exchange.request
    for response in messages_of(seen.exchange, pb.AbortResponse):
        told = [result.request_id for result in response.results]
        if isinstance(request, pb.AbortRequest) and not request.all:
            named = list(request.request_ids)
            message = "Abort has not one outcome per id in their order"
            expect(told in (named, list(dict.fromkeys(named))), message, expected=named, seen=told)
        for result in response.results:
            expect(result.outcome, "an outcome of Abort is not set", seen=result.request_id)


@of_calls("DRN-05")
def drains_have_an_end(seen: Seen) -> None:
    """A final state as the last message of a Drain that ended with OK, and as no other."""
    states = [response.state for response in messages_of(seen.exchange, pb.DrainResponse)]
    for earlier, later in pairwise(states):
        expect(earlier not in ENDS, "a Drain goes on after its final state")
        names = f"{pb.DrainState.Name(earlier)} to {pb.DrainState.Name(later)}"
        expect(later >= earlier, "the state of a Drain went back", seen=names)
    if isinstance(seen.exchange.request, pb.DrainRequest) and seen.exchange.is_ok:
        expect(states and states[-1] in ENDS, "a Drain ended with OK without a final state", seen=states[-1:])


@of_calls("EMB-01")
def each_input_has_a_vector(seen: Seen) -> None:
    """In as many embeddings."""
    request = seen.exchange.request
    for response in messages_of(seen.exchange, pb.EmbedResponse):
        if isinstance(request, pb.EmbedRequest):
            inputs, vectors = len(request.request.token_ids), len(response.output.embeddings)
            expect_equal(vectors, inputs, "Embed has not one vector per input")


@of_calls("EMB-02")
def vectors_are_numbers(seen: Seen) -> None:
    """Of as many dimensions as the others, or as were asked for."""
    request = seen.exchange.request
    for response in messages_of(seen.exchange, pb.EmbedResponse):
        sizes = {len(vector.values) for vector in response.output.embeddings}
        expect(len(sizes) <= 1, "vectors of one request have different dimensions", seen=sorted(sizes))
        if isinstance(request, pb.EmbedRequest) and request.request.dimensions and sizes:
            message = "a vector has other dimensions than were asked for"
            expect_equal(max(sizes), request.request.dimensions, message)
        finite = all(math.isfinite(math.fsum(vector.values)) for vector in response.output.embeddings)
        expect(finite, "a vector has a number that is not finite")


@of_calls("EMB-06")
def inputs_are_counted(seen: Seen) -> None:
    """All their tokens."""
    request = seen.exchange.request
    for response in messages_of(seen.exchange, pb.EmbedResponse):
        if isinstance(request, pb.EmbedRequest):
            tokens = sum(len(entry.token_ids) for entry in request.request.token_ids)
            expect_equal(response.output.prompt_tokens, tokens, "prompt_tokens is not that of all inputs")


@of_calls("MDT-04")
def embeddings_name_their_request(seen: Seen) -> None:
    """Byte for byte."""
    request = seen.exchange.request
    for response in messages_of(seen.exchange, pb.EmbedResponse):
        if isinstance(request, pb.EmbedRequest):
            expect_equal(response.request_id, request.request_id, "EmbedResponse carries another request_id")


def _lives(seen: Seen) -> Iterator[str]:
    """What is named; a message that names none says nothing."""
    named = [load.engine_lifetime_id for load in loads_of(seen.exchange)]
    named += [answer.engine_lifetime_id for answer in messages_of(seen.exchange, pb.GenerateResponse)]
    named += [str(value) for key, value in seen.exchange.initial_metadata if key == LIFETIME_KEY]
    for frame in messages_of(seen.exchange, pb.GenerateMultiplexedResponse):
        named += [event.accepted.engine_lifetime_id for event in frame.events]
    return filter(None, named)


def _metadata_bytes(entries: Metadata) -> int:
    return sum(len(name) + _encoded_bytes(value) + ENTRY_OVERHEAD for name, value in entries)


def _encoded_bytes(value: str | bytes) -> int:
    """Binary values travel as base64."""
    return len(value) if isinstance(value, str) else -(-len(value) * 4 // 3)
