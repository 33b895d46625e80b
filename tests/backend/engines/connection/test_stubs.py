"""The generated stubs as a synchronous client uses them, against a channel that is no network."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

import grpc
import grpc_testing
import pytest

from enginewire import v1 as pb
from enginewire.v1 import backend_service_pb2, engine_service_pb2
from tests.patience import PATIENCE_SECONDS

T = TypeVar("T")
BACKEND = backend_service_pb2.DESCRIPTOR.services_by_name["BackendService"]
ENGINE = engine_service_pb2.DESCRIPTOR.services_by_name["EngineService"]


@pytest.fixture
def channel() -> grpc_testing.Channel:
    return grpc_testing.channel([BACKEND, ENGINE], grpc_testing.strict_real_time())


def start(client: Callable[[], T]) -> Future[T]:
    """Run a client beside the test, which plays the server. A stuck one does not hold up the suite."""
    result: Future[T] = Future()

    def run() -> None:
        try:
            result.set_result(client())
        except grpc.RpcError as error:
            result.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return result


def test_backend_service_streams_annotated_items(channel: grpc_testing.Channel) -> None:
    asked = pb.BackendServiceGenerateRequest(text="hi")
    client = start(lambda: [item.annotated for item in pb.BackendServiceStub(channel).Generate(asked)])
    _, request, call = channel.take_unary_stream(BACKEND.methods_by_name["Generate"])
    assert request == asked
    sent = [
        pb.Annotated(event="migrated"),
        pb.Annotated(data=pb.BackendOutput(text="h", token_ids=[1])),
        pb.Annotated(error=pb.Status(code=13, message="broken")),
    ]
    for item in sent:
        call.send_response(pb.BackendServiceGenerateResponse(annotated=item))
    call.terminate((), grpc.StatusCode.OK, "")
    assert client.result(timeout=PATIENCE_SECONDS) == sent


def test_a_refusal_reaches_the_client_with_its_details(channel: grpc_testing.Channel) -> None:
    asked = pb.BackendServiceGenerateRequest()
    client = start(lambda: list(pb.BackendServiceStub(channel).Generate(asked)))
    _, _, call = channel.take_unary_stream(BACKEND.methods_by_name["Generate"])
    call.send_initial_metadata(())
    details = pb.Status(code=3, message="prompt: must be one of text, chat and token_ids")
    trailers = (("grpc-status-details-bin", details.SerializeToString()),)
    call.terminate(trailers, grpc.StatusCode.INVALID_ARGUMENT, details.message)
    error = client.exception(timeout=PATIENCE_SECONDS)
    assert isinstance(error, grpc.RpcError)
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert pb.Status.FromString(dict(error.trailing_metadata())["grpc-status-details-bin"]) == details


def test_engine_service_generates_with_metadata(channel: grpc_testing.Channel) -> None:
    asked = pb.GenerateRequest(request_id="r", request=pb.PreprocessedRequest(token_ids=[1, 2]))
    stub = pb.EngineServiceStub(channel)
    client = start(lambda: list(stub.Generate(asked, metadata=(("enginewire-routing-key", "k"),))))
    metadata, request, call = channel.take_unary_stream(ENGINE.methods_by_name["Generate"])
    assert ("enginewire-routing-key", "k") in metadata
    assert request == asked
    output = pb.LLMEngineOutput(token_ids=[3], finish_reason=pb.FINISH_REASON_EOS)
    call.send_response(pb.GenerateResponse(output=output))
    call.terminate((), grpc.StatusCode.OK, "")
    assert [response.output for response in client.result(timeout=PATIENCE_SECONDS)] == [output]


def test_engine_service_aborts(channel: grpc_testing.Channel) -> None:
    client = start(lambda: pb.EngineServiceStub(channel).Abort(pb.AbortRequest(request_ids=["r"])))
    _, request, call = channel.take_unary_unary(ENGINE.methods_by_name["Abort"])
    assert list(request.request_ids) == ["r"]
    answer = pb.AbortResponse()
    call.terminate(answer, (), grpc.StatusCode.OK, "")
    assert client.result(timeout=PATIENCE_SECONDS) == answer


def test_cancelling_a_call_reaches_the_server(channel: grpc_testing.Channel) -> None:
    responses = pb.BackendServiceStub(channel).Generate(pb.BackendServiceGenerateRequest(text="x"))
    _, _, call = channel.take_unary_stream(BACKEND.methods_by_name["Generate"])
    responses.cancel()
    call.cancelled()
    assert responses.code() is grpc.StatusCode.CANCELLED
