"""BackendService.Embed over a socket: texts and token ids in, vectors out."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest

from enginewire import v1 as pb
from enginewire.backend.engines.failure import DETAILS_KEY
from enginewire.backend.frontends.grpc_service import BackendServicer
from enginewire.backend.frontends.text_backend import TextBackend
from tests.backend.frontends.conftest import StartBackend
from tests.backend.frontends.http_api.serving import sdk

OWN_SIZE = 64
VOCABULARY = 258


@asynccontextmanager
async def stub_of(backend: TextBackend, folder: Path, **given: int) -> AsyncIterator[pb.BackendServiceStub]:
    """A stub of a BackendService on a real socket."""
    server, target = grpc.aio.server(), f"unix:{folder}/backend.sock"
    server.add_generic_rpc_handlers((BackendServicer(backend, **given).handlers(),))
    server.add_insecure_port(target)
    await server.start()
    async with grpc.aio.insecure_channel(target, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        yield pb.BackendServiceStub(channel)
    await server.stop(None)


@pytest.fixture
async def stub(text_backend: TextBackend, socket_folder: Path) -> AsyncIterator[pb.BackendServiceStub]:
    async with stub_of(text_backend, socket_folder) as stub:
        yield stub


def ask(*inputs: str | list[int], request_id: str = "", **rest: object) -> pb.BackendServiceEmbedRequest:
    return pb.BackendServiceEmbedRequest(
        request_id=request_id,
        inputs=[
            pb.EmbeddingInput(text=each)
            if isinstance(each, str)
            else pb.EmbeddingInput(token_ids=pb.TokenSequence(token_ids=each))
            for each in inputs
        ],
        request=pb.PreprocessedEmbeddingRequest(**rest),
    )


async def refusal(
    stub: pb.BackendServiceStub, asked: pb.BackendServiceEmbedRequest
) -> tuple[grpc.StatusCode, str, str]:
    """Code, field and message."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.Embed(asked)
    detail, trailers = pb.ErrorDetail(), dict(caught.value.trailing_metadata())
    assert pb.Status.FromString(trailers[DETAILS_KEY]).details[0].Unpack(detail)
    return caught.value.code(), detail.field, caught.value.details()


async def test_texts_and_token_ids_mean_the_same(stub):
    answer = await stub.Embed(ask("one", list(b"one"), "two", request_id="mine"))
    one, same, two = answer.output.embeddings
    assert one == same != two
    assert math.hypot(*one.values) == pytest.approx(1.0, abs=1e-6)
    assert (answer.output.prompt_tokens, answer.output.total_tokens, answer.request_id) == (9, 9, "mine")


async def test_it_gives_the_vectors_of_the_http_face(text_backend, socket_folder):
    async with stub_of(text_backend, socket_folder) as stub, sdk(text_backend) as client:
        ours = await stub.Embed(ask("hello", dimensions=8))
        theirs = await client.embeddings.create(model="mocker", input="hello", dimensions=8)
    assert list(ours.output.embeddings[0].values) == pytest.approx(theirs.data[0].embedding, abs=0)


async def test_a_thousand_inputs_come_back_in_order(stub):
    texts = [f"text {place}" for place in range(1000)]
    answer = await stub.Embed(ask(*texts))
    alone = await stub.Embed(ask(texts[777]))
    assert len(answer.output.embeddings) == 1000
    assert answer.output.embeddings[777] == alone.output.embeddings[0]


async def test_an_id_is_drawn_for_who_names_none(stub):
    first, second = [(await stub.Embed(ask("a"))).request_id for _ in range(2)]
    assert first
    assert first != second


@pytest.mark.parametrize(
    ("field", "asked"),
    [
        ("inputs", ask()),
        ("inputs", ask(*["a"] * 2049)),
        ("inputs[1]", ask("a", "")),
        ("inputs[0]", ask([])),
        ("inputs[1]", pb.BackendServiceEmbedRequest(inputs=[{"text": "a"}, {}])),
        ("inputs[70]", ask(*["a"] * 70, [VOCABULARY])),
        ("inputs[1]", ask("a", "a" * 4097)),
        ("dimensions", ask("a", dimensions=OWN_SIZE + 1)),
        ("request.token_ids", ask("a", token_ids=[pb.TokenSequence(token_ids=[1])])),
        ("encoding_format", ask("a", encoding_format="hex")),
    ],
)
async def test_what_is_wrong_is_named(stub, field, asked):
    code, named, message = await refusal(stub, asked)
    assert (code, named) == (grpc.StatusCode.INVALID_ARGUMENT, field)
    assert message.startswith(field)


async def test_an_answer_that_is_too_long_for_one_message_is_refused(text_backend, socket_folder):
    async with stub_of(text_backend, socket_folder, max_answer_bytes=4096) as stub:
        assert len((await stub.Embed(ask(*["a"] * 15))).output.embeddings) == 15
        assert (await refusal(stub, ask(*["a"] * 16)))[:2] == (grpc.StatusCode.INVALID_ARGUMENT, "inputs")


async def test_bytes_that_are_no_request_are_refused(text_backend, socket_folder):
    target = f"unix:{socket_folder}/backend.sock"
    async with stub_of(text_backend, socket_folder), grpc.aio.insecure_channel(target) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary("/enginewire.v1.BackendService/Embed")(b"\xff")
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("leaves", ["cancel", "deadline"])
async def test_a_caller_who_leaves_ends_the_work(start_backend: StartBackend, socket_folder, leaves):
    backend, serving = await start_backend(mocker_ttft_ms=60_000.0)
    async with stub_of(backend, socket_folder) as stub:
        call = stub.Embed(ask("a"), timeout=0.5 if leaves == "deadline" else None)
        await serving.until(lambda load: load.waiting == 1 or call.done())
        if leaves == "cancel":
            call.cancel()
        with pytest.raises((asyncio.CancelledError, grpc.aio.AioRpcError)):
            await call
        await serving.until_idle()
