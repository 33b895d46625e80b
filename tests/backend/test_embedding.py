"""Embeddings through the backend: checked answers, split requests, retries, and what ends them."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest

from enginewire import v1 as pb
from enginewire.backend.backend import Backend
from enginewire.backend.embedding import MAX_INPUTS_PER_CALL
from enginewire.backend.engines.connection.client import EngineClient
from enginewire.backend.engines.endpoints import Endpoints
from enginewire.backend.engines.failure import RequestFailed
from enginewire.backend.prompting.tokenizer import BackendTokenizer
from enginewire.backend.replay.retry import RetryPolicy
from enginewire.server.engines.interface import GenerateContext
from enginewire.server.engines.mocker.engine import MockerEngine
from enginewire.server.engines.mocker.options import MockerOptions
from enginewire.server.engines.mocker.tokenizer import byte_tokenizer
from enginewire.server.failures import Draining
from enginewire.server.services.discovery import DiscoveryServicer
from enginewire.server.services.embedding import EmbeddingServicer
from tests.server.conftest import engine_server
from tests.server.serving import Serving

__all__ = ["engine_server"]

Answer = Callable[[pb.EmbeddingsEngineOutput], None]
VOCABULARY = BackendTokenizer.from_files(byte_tokenizer().files).vocabulary


class Wrong(MockerEngine):
    """An engine whose answers a test spoils."""

    def __init__(self, spoil: Answer = lambda output: None) -> None:
        super().__init__(MockerOptions())
        self._spoil = spoil
        self.requests: list[pb.PreprocessedEmbeddingRequest] = []

    async def embed(
        self, request: pb.PreprocessedEmbeddingRequest, context: GenerateContext
    ) -> pb.EmbeddingsEngineOutput:
        self.requests.append(request)
        output = await super().embed(request, context)
        self._spoil(output)
        return output


class Leaving(Wrong):
    """Refuses the first calls as an engine that drains."""

    def __init__(self, refusals: int) -> None:
        super().__init__()
        self._refusals = refusals

    async def embed(
        self, request: pb.PreprocessedEmbeddingRequest, context: GenerateContext
    ) -> pb.EmbeddingsEngineOutput:
        if self._refusals:
            self._refusals -= 1
            raise Draining("not now")
        return await super().embed(request, context)


@asynccontextmanager
async def backend_on(*servers: Serving, retry: RetryPolicy | None = None) -> AsyncIterator[Backend]:
    async with Endpoints([EngineClient(each.server.target) for each in servers]) as engines:
        yield Backend(engines, VOCABULARY, retry=retry)


def asking(*inputs: bytes, **fields: object) -> pb.PreprocessedEmbeddingRequest:
    sequences = [pb.TokenSequence(token_ids=list(each)) for each in inputs]
    return pb.PreprocessedEmbeddingRequest(token_ids=sequences, **fields)


async def failure_of(backend: Backend, *inputs: bytes, **fields: object) -> RequestFailed:
    with pytest.raises(RequestFailed) as caught:
        await backend.embed(asking(*inputs, **fields))
    return caught.value


async def test_vectors_and_usage_come_back_in_order(engine_server):
    async with backend_on(await engine_server()) as backend:
        answer = await backend.embed(asking(b"one", b"two", b"one"))
    assert answer.prompt_tokens == 9
    assert answer.vectors[0] == answer.vectors[2] != answer.vectors[1]
    assert math.hypot(*answer.vectors[0]) == pytest.approx(1.0, abs=1e-6)


async def test_many_inputs_are_split_over_calls_and_put_together_again(engine_server):
    engine = Wrong()
    texts = [b"text %d" % place for place in range(2 * MAX_INPUTS_PER_CALL + 7)]
    async with backend_on(await engine_server(engine)) as backend:
        answer = await backend.embed(asking(*texts, model="mocker", dimensions=8, annotations=["a"]))
        alone = await backend.embed(asking(texts[100], dimensions=8))
    assert sorted(len(each.token_ids) for each in engine.requests) == [1, 7, 64, 64]
    assert {each.dimensions for each in engine.requests} == {8}
    assert sum(list(each.annotations) == ["a"] for each in engine.requests) == 3
    assert len(answer.vectors) == len(texts)
    assert answer.vectors[100] == alone.vectors[0]
    assert answer.prompt_tokens == sum(map(len, texts))


async def test_a_refusal_names_the_input_of_the_whole_request(engine_server):
    texts = [b"x"] * (MAX_INPUTS_PER_CALL + 5)
    texts[MAX_INPUTS_PER_CALL + 2] = b""
    async with backend_on(await engine_server()) as backend:
        failure = await failure_of(backend, *texts)
    assert failure.failure.field == f"token_ids[{MAX_INPUTS_PER_CALL + 2}]"
    assert f"token_ids[{MAX_INPUTS_PER_CALL + 2}]" in str(failure)


async def test_no_inputs_and_unknown_models_are_refused(engine_server):
    async with backend_on(await engine_server()) as backend:
        assert (await failure_of(backend)).failure.field == "token_ids"
        assert (await failure_of(backend, b"x", model="other")).reason == pb.ERROR_REASON_MODEL_NOT_FOUND


def drop_one(output: pb.EmbeddingsEngineOutput) -> None:
    del output.embeddings[0]


def shorten(output: pb.EmbeddingsEngineOutput) -> None:
    del output.embeddings[1].values[5:]


def empty(output: pb.EmbeddingsEngineOutput) -> None:
    for each in output.embeddings:
        del each.values[:]


def spoil_number(output: pb.EmbeddingsEngineOutput) -> None:
    output.embeddings[1].values[3] = float("nan")


def opposite_infinities(output: pb.EmbeddingsEngineOutput) -> None:
    output.embeddings[0].values[3] = float("inf")
    output.embeddings[0].values[4] = float("-inf")


def count_wrongly(output: pb.EmbeddingsEngineOutput) -> None:
    output.prompt_tokens += 1


def total_wrongly(output: pb.EmbeddingsEngineOutput) -> None:
    output.total_tokens = 0


@pytest.mark.parametrize(
    "spoil",
    [drop_one, shorten, empty, spoil_number, opposite_infinities, count_wrongly, total_wrongly],
)
async def test_an_answer_that_breaks_the_contract_is_never_passed_on(engine_server, spoil):
    async with backend_on(await engine_server(Wrong(spoil))) as backend:
        failure = await failure_of(backend, b"one", b"two")
    assert failure.reason == pb.ERROR_REASON_PROTOCOL_VIOLATION


async def test_other_dimensions_than_asked_for_are_a_violation(engine_server):
    def lengthen(output: pb.EmbeddingsEngineOutput) -> None:
        for each in output.embeddings:
            each.values.append(0.0)

    async with backend_on(await engine_server(Wrong(lengthen))) as backend:
        await backend.embed(asking(b"one"))
        failure = await failure_of(backend, b"one", dimensions=4)
    assert failure.reason == pb.ERROR_REASON_PROTOCOL_VIOLATION


async def test_another_engine_takes_over_from_one_that_refuses(engine_server):
    servers = [await engine_server(Leaving(2)), await engine_server(Leaving(2))]
    policy = RetryPolicy(shortest_backoff=0.01, longest_backoff=0.02)
    async with backend_on(*servers, retry=policy) as backend:
        assert len((await backend.embed(asking(b"one"))).vectors) == 1


async def test_an_engine_that_refused_is_left_alone_for_a_while(engine_server):
    policy = RetryPolicy(shortest_backoff=0.4, longest_backoff=0.4)
    begin = time.monotonic()
    async with backend_on(await engine_server(Leaving(1)), retry=policy) as backend:
        await backend.embed(asking(b"one"))
    assert time.monotonic() - begin >= 0.2


async def test_the_answer_to_another_request_is_a_violation(engine_server, monkeypatch):
    async def embed(self: EmbeddingServicer, request: pb.EmbedRequest, call: object) -> pb.EmbedResponse:
        output = pb.EmbeddingsEngineOutput(embeddings=[pb.Embedding(values=[1.0])])
        return pb.EmbedResponse(output=output, request_id="other")

    monkeypatch.setattr(EmbeddingServicer, "Embed", embed)
    async with backend_on(await engine_server()) as backend:
        failure = await failure_of(backend, b"one")
    assert "of another request" in str(failure)


async def test_without_a_policy_the_first_failure_is_the_callers(engine_server):
    async with backend_on(await engine_server(Leaving(1))) as backend:
        assert (await failure_of(backend, b"one")).reason == pb.ERROR_REASON_DRAINING
        await backend.embed(asking(b"one"))


async def test_patience_has_an_end(engine_server):
    policy = RetryPolicy(max_attempts=3, shortest_backoff=0.01, longest_backoff=0.02)
    async with backend_on(await engine_server(Leaving(9)), retry=policy) as backend:
        assert (await failure_of(backend, b"one")).reason == pb.ERROR_REASON_DRAINING


async def test_an_engine_without_embeddings_says_so(engine_server):
    class Plain(MockerEngine):
        async def start(self, worker_id: int) -> pb.EngineConfig:
            config = await super().start(worker_id)
            config.capabilities.embeddings = False
            return config

    async with backend_on(await engine_server(Plain())) as backend:
        assert (await failure_of(backend, b"one")).code is grpc.StatusCode.UNIMPLEMENTED


async def test_a_timeout_and_a_cancelled_caller_end_the_work(engine_server):
    serving = await engine_server(MockerEngine(MockerOptions(ttft_ms=60_000)))
    async with backend_on(serving) as backend:
        with pytest.raises(RequestFailed) as caught:
            await backend.embed(asking(b"one"), timeout=0.1)
        assert caught.value.reason == pb.ERROR_REASON_DEADLINE_EXCEEDED
        call = asyncio.create_task(backend.embed(asking(b"one")))
        await serving.until(lambda load: load.waiting == 1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await serving.until_idle(2)


async def test_the_callers_id_is_the_one_the_engine_knows(engine_server):
    serving = await engine_server(MockerEngine(MockerOptions(ttft_ms=60_000)))
    async with backend_on(serving) as backend:
        call = asyncio.create_task(backend.embed(asking(b"one"), request_id="mine"))
        await serving.until(lambda load: load.waiting == 1)
        await backend.client.abort(["mine"], "enough")
        with pytest.raises(RequestFailed) as caught:
            await call
    assert caught.value.reason == pb.ERROR_REASON_CANCELLED


async def test_an_older_engine_is_asked_in_its_own_revision(engine_server, monkeypatch):
    told, embed, named = DiscoveryServicer.GetEngineInfo, EmbeddingServicer.Embed, []

    async def older(*asked: object) -> pb.GetEngineInfoResponse:
        info = await told(*asked)
        info.maximum_client_revision = 1
        return info

    async def watched(self: EmbeddingServicer, request: pb.EmbedRequest, call: object) -> pb.EmbedResponse:
        named.append(request.client_revision)
        return await embed(self, request, call)

    monkeypatch.setattr(DiscoveryServicer, "GetEngineInfo", older)
    monkeypatch.setattr(EmbeddingServicer, "Embed", watched)
    async with backend_on(await engine_server()) as backend:
        await backend.embed(asking(b"one"))
    assert named == [1]


async def test_no_engine_at_all_is_an_error(socket_folder: Path):
    async with Endpoints([EngineClient(f"unix:{socket_folder}/nobody.sock")]) as engines:
        failure = await failure_of(Backend(engines, VOCABULARY), b"one")
    assert failure.code is grpc.StatusCode.UNAVAILABLE
