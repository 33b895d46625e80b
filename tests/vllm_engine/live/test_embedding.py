"""Vectors of a model that vLLM runs for nothing else, beside those of the torch engine."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import grpc
import pytest

from enginewire import v1 as pb
from enginewire.server.demo_model import questions
from tests.vllm_engine.live.conftest import VLLM, Server, Start
from tests.vllm_engine.live.test_answers import PATIENCE_SECONDS, connection, outputs, prompt_of, request

POOLING = "--engine-args=--enforce-eager --runner pooling"


@pytest.fixture(scope="module")
def pooling(start: Start) -> Server:
    """The demo model in vLLM, for its vectors."""
    server = start(*VLLM[:-1], POOLING)
    server.wait_ready()
    return server


def embedded(server: Server, inputs: Sequence[list[int]], **fields: int) -> list[list[float]]:
    """One vector for each input."""
    asked = pb.EmbedRequest(request_id=uuid.uuid4().hex)
    asked.request.CopyFrom(
        pb.PreprocessedEmbeddingRequest(
            token_ids=[pb.TokenSequence(token_ids=ids) for ids in inputs], **fields
        )
    )
    with connection(server) as channel:
        output = pb.EmbeddingServiceStub(channel).Embed(asked, timeout=PATIENCE_SECONDS).output
    assert output.prompt_tokens == output.total_tokens == sum(map(len, inputs))
    return [list(each.values) for each in output.embeddings]


def inputs() -> list[list[int]]:
    """More than run at the same time, of different lengths."""
    return [prompt_of(question) for question in list(questions())[::40]]


def assert_close(vectors: Sequence[list[float]], wanted: Sequence[list[float]]) -> None:
    for vector, other in zip(vectors, wanted, strict=True):
        assert vector == pytest.approx(other, abs=1e-4)


def test_vectors_are_those_of_the_torch_engine(pooling, torch):
    assert_close(embedded(pooling, inputs()), embedded(torch, inputs()))


def test_fewer_dimensions_are_those_of_the_torch_engine_too(pooling, torch):
    short = embedded(pooling, inputs(), dimensions=7)
    assert {len(vector) for vector in short} == {7}
    assert_close(short, embedded(torch, inputs(), dimensions=7))


def test_it_says_that_it_embeds_and_does_nothing_else(pooling):
    with connection(pooling) as channel:
        info = pb.DiscoveryServiceStub(channel).GetEngineInfo(pb.GetEngineInfoRequest())
    assert info.config.capabilities.embeddings
    assert not info.config.capabilities.multiplexed
    with pytest.raises(grpc.RpcError) as found:
        outputs(pooling, request("Who are you?"))
    assert found.value.code() == grpc.StatusCode.UNIMPLEMENTED


def test_a_model_that_generates_does_not_embed(vllm):
    with pytest.raises(grpc.RpcError) as found:
        embedded(vllm, inputs())
    assert found.value.code() == grpc.StatusCode.UNIMPLEMENTED
