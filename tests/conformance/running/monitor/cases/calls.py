"""Answers of the other RPCs."""

from __future__ import annotations

import grpc

from enginewire import v1 as pb
from enginewire.conformance.wire.exchange import Exchange
from enginewire.conformance.wire.foreign import health_types
from tests.conformance.running.monitor.cases.load import load, told
from tests.conformance.running.monitor.cases.register import breaks, of_life
from tests.conformance.running.monitor.made import called, changed, refused

UNAVAILABLE, UNAUTHENTICATED = grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNAUTHENTICATED
DEAD = pb.ErrorDetail(reason=pb.ERROR_REASON_ENGINE_DEAD, retryable=True)


@breaks("messages_are_small", "5 MiB")
def _() -> Exchange:
    exchange = told(load())
    exchange.arrived[0].size = 5 * 1024 * 1024
    return exchange


@breaks("metadata_is_small", "9 KiB")
def _() -> Exchange:
    exchange = told(load())
    exchange.trailing_metadata = (("x", "y" * 9000),)
    return exchange


@breaks("facts_stay_the_same", "another name")
def _() -> Exchange:
    other = changed()
    other.instance_id = "other"
    return called("DiscoveryService.GetEngineInfo", pb.GetEngineInfoRequest(), other)


@breaks("facts_are_told_in_every_state", "not by a dead engine")
def _() -> Exchange:
    return refused(pb.GetEngineInfoRequest(), DEAD, UNAVAILABLE, method="DiscoveryService.GetEngineInfo")


@breaks("the_load_is_sent_in_every_state", "not by a dead engine")
def _() -> Exchange:
    return refused(pb.WatchLoadRequest(), DEAD, UNAVAILABLE, method="DiscoveryService.WatchLoad")


def unknown(*metadata: tuple[str, str], text: str = "no") -> tuple[Exchange, pb.GetEngineInfoResponse]:
    """A call of somebody without a key, who gets this metadata before the status."""
    detail = pb.ErrorDetail(reason=pb.ERROR_REASON_AUTH)
    exchange = refused(pb.GetLoadRequest(), detail, UNAUTHENTICATED, text, "DiscoveryService.GetLoad")
    exchange.initial_metadata = metadata
    return exchange, of_life("life-of-a-stranger")


breaks("who_may_not_call_learns_nothing", "which life")(lambda: unknown(("enginewire-lifetime-id", "x")))
breaks("who_may_not_call_learns_nothing", "by another key")(lambda: unknown(("x-is", "life-of-a-stranger")))
breaks("who_may_not_call_learns_nothing", "in the text")(lambda: unknown(text="no, says life-of-a-stranger"))


@breaks("no_service_has_no_health", "it does not serve")
def _() -> Exchange:
    asked = health_types.request(health_types.NO_SERVICE)
    return called(health_types.CHECK, asked, health_types.response(health_types.NOT_SERVING))


def aborted(*results: str) -> Exchange:
    """An Abort of two ids with these outcomes."""
    done = [pb.AbortResult(request_id=name, outcome=pb.ABORT_OUTCOME_UNKNOWN) for name in results]
    asked = pb.AbortRequest(request_ids=["a", "b"])
    return called("EngineService.Abort", asked, pb.AbortResponse(results=done))


breaks("aborts_have_an_outcome_per_id", "one is missing")(lambda: aborted("a"))
breaks("aborts_have_an_outcome_per_id", "turned")(lambda: aborted("b", "a"))


@breaks("drains_have_an_end", "none")
def _() -> Exchange:
    draining = pb.DrainResponse(state=pb.DRAIN_STATE_DRAINING)
    return called("EngineService.Drain", pb.DrainRequest(), draining)


def embedded(*sizes: int, tokens: int = 3, request_id: str = "e-1", **asked: object) -> Exchange:
    """An Embed of two inputs with vectors of these sizes."""
    inputs = [pb.TokenSequence(token_ids=[1, 2]), pb.TokenSequence(token_ids=[3])]
    wanted = pb.PreprocessedEmbeddingRequest(token_ids=inputs, **asked)  # type: ignore[arg-type]  # a test
    vectors = [pb.Embedding(values=[0.5] * size) for size in sizes]
    made = pb.EmbeddingsEngineOutput(embeddings=vectors, prompt_tokens=tokens, total_tokens=tokens)
    answer = pb.EmbedResponse(output=made, request_id=request_id)
    return called("EmbeddingService.Embed", pb.EmbedRequest(request_id="e-1", request=wanted), answer)


breaks("each_input_has_a_vector", "one")(lambda: embedded(4))
breaks("vectors_are_numbers", "of other sizes")(lambda: embedded(4, 5))
breaks("vectors_are_numbers", "than were asked for")(lambda: embedded(4, 4, dimensions=2))
breaks("inputs_are_counted", "of the first alone")(lambda: embedded(4, 4, tokens=2))
breaks("embeddings_name_their_request", "another")(lambda: embedded(4, 4, request_id="e-2"))
