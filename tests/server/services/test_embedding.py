"""EmbeddingService over a socket: check, call, answer, limits, deadline, abort, drain."""

from __future__ import annotations

import asyncio
import math
import time

import grpc
import pytest

from enginewire import v1 as pb
from enginewire.server.engines.interface import GenerateContext
from enginewire.server.engines.iterator_driver import IteratorDriver
from enginewire.server.engines.mocker.engine import MockerEngine
from enginewire.server.engines.mocker.options import MockerOptions
from enginewire.server.failures import DeadlineExceeded
from tests.patience import PATIENCE_SECONDS
from tests.server.serving import Advertising, Serving, ask, detail_of, submit

OWN_SIZE = 64


def asking(*inputs: bytes, request_id: str = "e1", **fields: object) -> pb.EmbedRequest:
    sequences = [pb.TokenSequence(token_ids=list(each)) for each in inputs]
    request = pb.PreprocessedEmbeddingRequest(token_ids=sequences, **fields)
    return pb.EmbedRequest(request_id=request_id, request=request)


async def refusal(serving: Serving, request: pb.EmbedRequest, **call: object) -> tuple[grpc.StatusCode, str]:
    """Status code and field of a request that must fail."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await serving.embedding.Embed(request, **call)
    return caught.value.code(), detail_of(caught.value).field


class Huge(MockerEngine):
    """An engine with vectors so long that few fit into one answer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding_size = 300_000

    async def embed(
        self, request: pb.PreprocessedEmbeddingRequest, context: GenerateContext
    ) -> pb.EmbeddingsEngineOutput:
        vector = [1.0] * (request.dimensions or self.embedding_size)
        return pb.EmbeddingsEngineOutput(embeddings=[pb.Embedding(values=vector) for _ in request.token_ids])


class Slow(MockerEngine):
    """An engine that embeds for ever and tells whether it still does."""

    def __init__(self) -> None:
        super().__init__()
        self.has_begun = asyncio.Event()
        self.has_ended = asyncio.Event()

    async def embed(
        self, request: pb.PreprocessedEmbeddingRequest, context: GenerateContext
    ) -> pb.EmbeddingsEngineOutput:
        self.has_begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.has_ended.set()
        raise AssertionError("nobody sets that event")


class Mute(MockerEngine):
    """An engine that embeds and does nothing else, or has the method without the capability."""

    def __init__(self, *, embeds: bool) -> None:
        super().__init__()
        self._embeds = self.only_embeds = embeds

    async def start(self, worker_id: int) -> pb.EngineConfig:
        config = await super().start(worker_id)
        config.capabilities.embeddings = self._embeds
        return config


class Lengths(MockerEngine):
    """Its vectors are the length of an input, and 1."""

    async def embed(
        self, request: pb.PreprocessedEmbeddingRequest, context: GenerateContext
    ) -> pb.EmbeddingsEngineOutput:
        vectors = [pb.Embedding(values=[len(each.token_ids), 1.0]) for each in request.token_ids]
        return pb.EmbeddingsEngineOutput(embeddings=vectors)


async def test_one_unit_vector_per_input_in_order(engine_server):
    serving = await engine_server()
    response = await serving.embedding.Embed(asking(b"one", b"two", b"one"))
    first, second, third = (list(each.values) for each in response.output.embeddings)
    assert response.request_id == "e1"
    assert first == third != second
    assert len(first) == OWN_SIZE
    assert math.hypot(*first) == pytest.approx(1.0, abs=1e-6)
    assert response.output.prompt_tokens == response.output.total_tokens == 9


async def test_fewer_dimensions_are_the_beginning_at_length_one(engine_server):
    serving = await engine_server()
    whole = (await serving.embedding.Embed(asking(b"text"))).output.embeddings[0].values
    short = (await serving.embedding.Embed(asking(b"text", dimensions=5))).output.embeddings[0].values
    length = math.hypot(*whole[:5])
    assert list(short) == pytest.approx([value / length for value in whole[:5]], abs=1e-6)


async def test_mocked_texts_are_similar_when_they_share_words(engine_server):
    serving = await engine_server()
    request = asking(b"the cat sat", b"the cat sits", b"WXYZ 123")
    one, near, far = [each.values for each in (await serving.embedding.Embed(request)).output.embeddings]
    assert _product(one, near) > 0.7 > 0.4 > _product(one, far)


@pytest.mark.parametrize(
    ("field", "request_"),
    [
        ("token_ids", asking()),
        ("token_ids[1]", asking(b"one", b"")),
        ("token_ids[2]", asking(b"one", b"two", b"x" * 4097)),
        ("token_ids", asking(*[b"x"] * 2049)),
        ("dimensions", asking(b"x", dimensions=0)),
        ("dimensions", asking(b"x", dimensions=OWN_SIZE + 1)),
        ("encoding_format", asking(b"x", encoding_format="hex")),
        ("mdc_sum", asking(b"x", mdc_sum="x" * 1025)),
        ("annotations[0]", asking(b"x", annotations=["x" * 1025])),
        ("request_id", asking(b"x", request_id="no spaces")),
        ("request", pb.EmbedRequest(request_id="e1")),
    ],
)
async def test_a_request_that_cannot_be_served_names_its_field(engine_server, field, request_):
    assert await refusal(await engine_server(), request_) == (grpc.StatusCode.INVALID_ARGUMENT, field)


async def test_an_id_outside_of_the_vocabulary_names_its_input(engine_server):
    request = asking(b"one", b"two")
    request.request.token_ids[1].token_ids[2] = 258
    answer = await refusal(await engine_server(), request)
    assert answer == (grpc.StatusCode.INVALID_ARGUMENT, "token_ids[1]")


async def test_unknown_models_and_revisions_are_refused(engine_server):
    serving = await engine_server()
    assert await refusal(serving, asking(b"x", model="other")) == (grpc.StatusCode.NOT_FOUND, "model")
    newer = asking(b"x")
    newer.client_revision = 99
    assert await refusal(serving, newer) == (grpc.StatusCode.FAILED_PRECONDITION, "client_revision")
    await serving.embedding.Embed(asking(b"x", model="mocker"))


async def test_priority_and_rank_come_as_metadata_and_are_checked_like_those_of_generate(engine_server):
    class Urgent(Advertising):
        priority = 0

        async def embed(
            self, request: pb.PreprocessedEmbeddingRequest, context: GenerateContext
        ) -> pb.EmbeddingsEngineOutput:
            self.priority = context.routing.priority
            return await super().embed(request, context)

    invalid, engine = grpc.StatusCode.INVALID_ARGUMENT, Urgent(priority=True, data_parallel=True)
    serving = await engine_server(engine)
    await serving.embedding.Embed(asking(b"x"), metadata=[("enginewire-priority", "-7")])
    assert engine.priority == -7
    for key, value, field in (
        ("priority", "high", "enginewire-priority"),
        ("dp-rank", "3", "routing.dp_rank"),
    ):
        answer = await refusal(serving, asking(b"x"), metadata=[(f"enginewire-{key}", value)])
        assert answer == (invalid, field)


@pytest.mark.parametrize("key", ["priority", "dp-rank", "routing-key"])
async def test_a_key_without_its_capability_is_not_read(key, engine_server):
    serving = await engine_server()
    await serving.embedding.Embed(asking(b"x"), metadata=[(f"enginewire-{key}", "high")])


async def test_an_answer_never_outgrows_the_default_limit_of_clients(engine_server):
    serving = await engine_server(Huge())
    answer = await refusal(serving, asking(*[b"x"] * 4))
    assert answer == (grpc.StatusCode.INVALID_ARGUMENT, "token_ids")
    largest = await serving.embedding.Embed(asking(*[b"x"] * 3))
    assert 3_000_000 < largest.ByteSize() < 4 * 2**20
    await serving.embedding.Embed(asking(*[b"x"] * 2000, dimensions=8))


async def test_an_engine_that_does_not_advertise_embeddings_refuses(engine_server):
    serving = await engine_server(Mute(embeds=False))
    assert await refusal(serving, asking(b"x")) == (grpc.StatusCode.UNIMPLEMENTED, "")


async def test_before_its_start_and_after_its_end_an_engine_refuses(engine_server):
    serving = await engine_server(is_started=False)
    assert await refusal(serving, asking(b"x")) == (grpc.StatusCode.UNAVAILABLE, "")
    await serving.server.start()
    await serving.embedding.Embed(asking(b"x"))
    await serving.engine.Cleanup(pb.CleanupRequest())
    assert await refusal(serving, asking(b"y")) == (grpc.StatusCode.UNAVAILABLE, "")


async def test_an_engine_behind_an_iterator_may_embed(engine_server):
    serving = await engine_server(IteratorDriver(Lengths()))
    response = await serving.embedding.Embed(asking(b"one", b"four"))
    assert [list(each.values) for each in response.output.embeddings] == [[3.0, 1.0], [4.0, 1.0]]


async def test_a_bug_of_the_engine_is_an_internal_error_without_its_text(engine_server):
    class Broken(MockerEngine):
        async def embed(
            self, request: pb.PreprocessedEmbeddingRequest, context: GenerateContext
        ) -> pb.EmbeddingsEngineOutput:
            raise KeyError("a secret prompt")

    serving = await engine_server(Broken())
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await serving.embedding.Embed(asking(b"x"))
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    assert "secret" not in caught.value.details()


async def test_embedding_and_health_are_services_of_the_same_server(engine_server):
    serving = await engine_server()
    assert await serving.is_serving("enginewire.v1.EmbeddingService")


async def test_an_engine_that_only_embeds_serves_no_multiplexed_stream(engine_server):
    serving = await engine_server(Mute(embeds=True))
    assert not (
        await serving.discovery.GetEngineInfo(pb.GetEngineInfoRequest())
    ).config.capabilities.multiplexed
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await serving.multiplexed([submit(1, ask())])
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    await serving.embedding.Embed(asking(b"x"))


async def test_an_abort_by_id_ends_the_call_and_the_work(engine_server):
    engine = Slow()
    serving = await engine_server(engine)
    call = asyncio.ensure_future(serving.embedding.Embed(asking(b"x")))
    await engine.has_begun.wait()
    duplicate = await refusal(serving, asking(b"y"))
    assert duplicate == (grpc.StatusCode.ALREADY_EXISTS, "request_id")
    outcome = await serving.engine.Abort(pb.AbortRequest(request_ids=["e1"]))
    assert outcome.results[0].outcome == pb.ABORT_OUTCOME_ABORTED
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    assert caught.value.code() is grpc.StatusCode.CANCELLED
    assert detail_of(caught.value).reason == pb.ERROR_REASON_CANCELLED
    assert engine.has_ended.is_set()
    again = await serving.engine.Abort(pb.AbortRequest(request_ids=["e1"]))
    assert again.results[0].outcome == pb.ABORT_OUTCOME_FINISHED


async def test_the_mocker_takes_a_while_for_each_input_and_can_be_aborted_meanwhile(engine_server):
    serving = await engine_server(MockerEngine(MockerOptions(itl_ms=1000)))
    call = serving.embedding.Embed(asking(*(b"x" for _ in range(200))))
    await serving.until(lambda load: load.waiting == 1)
    await serving.engine.Abort(pb.AbortRequest(all=True))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    assert caught.value.code() is grpc.StatusCode.CANCELLED
    assert (await serving.load()).waiting == 0


async def test_an_abort_that_came_first_refuses_the_request(engine_server):
    serving = await engine_server()
    await serving.engine.Abort(pb.AbortRequest(request_ids=["e1"]))
    assert await refusal(serving, asking(b"x")) == (grpc.StatusCode.CANCELLED, "request_id")


async def test_a_caller_who_leaves_ends_the_work(engine_server):
    engine = Slow()
    serving = await engine_server(engine)
    call = serving.embedding.Embed(asking(b"x"))
    await engine.has_begun.wait()
    call.cancel()
    await asyncio.wait_for(engine.has_ended.wait(), PATIENCE_SECONDS)


async def test_a_deadline_ends_the_work(engine_server):
    engine = Slow()
    serving = await engine_server(engine)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await serving.embedding.Embed(asking(b"x"), timeout=0.1)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await asyncio.wait_for(engine.has_ended.wait(), PATIENCE_SECONDS)


async def test_a_deadline_needs_no_help_of_grpc(engine_server):
    engine = Slow()
    requests = (await engine_server(engine)).server.lifecycle.requests
    with pytest.raises(DeadlineExceeded):
        await requests.embed(asking(b"x"), time.monotonic() + 0.05)
    assert engine.has_ended.is_set()


async def test_a_drain_lets_running_work_finish_and_refuses_the_rest(engine_server):
    serving = await engine_server(MockerEngine(MockerOptions(ttft_ms=300)))
    call = asyncio.ensure_future(serving.embedding.Embed(asking(b"x")))
    await serving.until(lambda load: load.waiting == 1)
    drain = serving.engine.Drain(pb.DrainRequest())
    await serving.until(lambda load: load.state == pb.ENGINE_STATE_DRAINING)
    await drain.read()
    code, _ = await refusal(serving, asking(b"y", request_id="e2"))
    assert code is grpc.StatusCode.UNAVAILABLE
    assert len((await call).output.embeddings) == 1
    last = None
    while (message := await drain.read()) is not grpc.aio.EOF:
        last = message
    assert last.state == pb.DRAIN_STATE_DRAINED


async def test_the_end_of_the_server_fails_work_that_hangs(engine_server):
    engine = Slow()
    serving = await engine_server(engine)
    call = asyncio.ensure_future(serving.embedding.Embed(asking(b"x")))
    await engine.has_begun.wait()
    await serving.server.lifecycle.cleanup(abort_in_flight=True)
    with pytest.raises(grpc.aio.AioRpcError):
        await call
    assert engine.has_ended.is_set()


async def test_a_full_queue_refuses_and_says_when_to_come_back(engine_server):
    engine = Slow()
    serving = await engine_server(engine, max_num_queued_reqs=1)
    engine_room = 256 + 1
    calls = [
        asyncio.ensure_future(serving.embedding.Embed(asking(b"x", request_id=f"e{place}")))
        for place in range(engine_room)
    ]
    while serving.server.lifecycle.requests.live_count < engine_room:  # noqa: ASYNC110  # no event for that
        await asyncio.sleep(0.01)
    code, _ = await refusal(serving, asking(b"x", request_id="late"))
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    await serving.engine.Abort(pb.AbortRequest(all=True))
    await asyncio.gather(*calls, return_exceptions=True)


def _product(one, other) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))
