from __future__ import annotations

import asyncio
import hashlib
import io
import json
import zipfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
from smg_grpc_proto import vllm_engine_pb2_grpc as stubs
from smg_grpc_proto.generated import common_pb2 as common, vllm_engine_pb2 as vllm

from enginewire import v1 as pb
from enginewire.backend.config import ServeOptions
from enginewire.backend.engines.failure import failed
from enginewire.backend.frontends.smg.facts import CHUNK_BYTES, tokenizer_chunks
from enginewire.backend.frontends.smg.server import smg_face
from enginewire.backend.frontends.text_backend import TextBackend
from enginewire.backend.prompting.tokenizer import BackendTokenizer
from enginewire.listening.sockets import AddressError
from tests.backend.frontends.conftest import StartBackend
from tests.patience import PATIENCE_SECONDS

PROMPT = list(b"abcdefgh")


@asynccontextmanager
async def smg(backend: TextBackend, **given: object) -> AsyncIterator[stubs.VllmEngineStub]:
    """The gateway's own stub on our face."""
    async with (
        smg_face(backend, ServeOptions(smg_port=0, **given)) as face,
        # Without probes the window of a stream stays small, and who does not read is soon noticed.
        grpc.aio.insecure_channel(
            face.address.removeprefix("grpc://"), options=[("grpc.http2.bdp_probe", 0)]
        ) as channel,
    ):
        yield stubs.VllmEngineStub(channel)


@pytest.fixture
async def stub(text_backend: TextBackend) -> AsyncIterator[stubs.VllmEngineStub]:
    async with smg(text_backend) as stub:
        yield stub


def asked(request_id: str = "r", stream: bool = True, **params: object) -> vllm.GenerateRequest:
    return vllm.GenerateRequest(
        request_id=request_id,
        tokenized=vllm.TokenizedInput(input_ids=PROMPT),
        sampling_params=vllm.SamplingParams(**params),
        stream=stream,
    )


async def answers(
    stub: stubs.VllmEngineStub, request: vllm.GenerateRequest
) -> tuple[list[vllm.GenerateStreamChunk], list[vllm.GenerateComplete]]:
    responses = [response async for response in stub.Generate(request)]
    chunks = [response.chunk for response in responses if response.HasField("chunk")]
    return chunks, [response.complete for response in responses if response.HasField("complete")]


async def test_a_stream_has_chunks_and_a_whole_answer_behind_them(stub: stubs.VllmEngineStub) -> None:
    chunks, (complete,) = await answers(stub, asked(max_tokens=5))
    assert [token for chunk in chunks for token in chunk.token_ids] == PROMPT[:5]
    assert sum(chunk.completion_tokens for chunk in chunks) == complete.completion_tokens == 5
    assert {chunk.prompt_tokens for chunk in chunks} == {complete.prompt_tokens} == {len(PROMPT)}
    assert (list(complete.output_ids), complete.finish_reason) == (PROMPT[:5], "length")


async def read_on(call: grpc.aio.UnaryStreamCall) -> None:
    while await call.read() is not grpc.aio.EOF:
        pass


async def test_a_gateway_that_stops_reading_is_ended(start_backend: StartBackend) -> None:
    backend, serving = await start_backend(max_model_len=100_000)
    async with smg(backend, slow_consumer_timeout=0.3) as stub:
        call = stub.Generate(asked(max_tokens=60_000, ignore_eos=True, logprobs=20))
        await call.read()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while backend.backend.activity.live:  # noqa: ASYNC110  # no event tells
                await asyncio.sleep(0.02)
        await serving.until_idle()
        with pytest.raises(grpc.aio.AioRpcError, match=r"took nothing for 0\.3 s"):
            await read_on(call)


async def test_a_unary_answer_has_no_chunks(stub: stubs.VllmEngineStub) -> None:
    chunks, (complete,) = await answers(stub, asked(stream=False, max_tokens=5, logprobs=1))
    assert chunks == []
    assert list(complete.output_ids) == PROMPT[:5]
    assert list(complete.output_logprobs.token_ids) == PROMPT[:5]
    assert len(complete.output_logprobs.token_logprobs) == 5
    assert [list(row.token_ids) for row in complete.output_logprobs.top_logprobs] == [[t] for t in PROMPT[:5]]


async def test_logprobs_of_a_stream_travel_once(stub: stubs.VllmEngineStub) -> None:
    chunks, (complete,) = await answers(stub, asked(max_tokens=3, logprobs=0))
    assert sum(len(chunk.output_logprobs.token_logprobs) for chunk in chunks) == 3
    assert not complete.HasField("output_logprobs")


async def test_each_choice_is_completed(stub: stubs.VllmEngineStub) -> None:
    _, completes = await answers(stub, asked(n=3, max_tokens=4))
    assert sorted(complete.index for complete in completes) == [0, 1, 2]
    assert all(list(complete.output_ids) == PROMPT[:4] for complete in completes)


async def test_a_stop_string_ends_the_engines_work_and_is_named(start_backend: StartBackend) -> None:
    backend, serving = await start_backend(mocker_itl_ms=1.0)
    async with smg(backend) as stub:
        _, (complete,) = await answers(stub, asked(stop=["de"], max_tokens=4000, ignore_eos=True))
        assert (complete.finish_reason, complete.matched_stop_str) == ("stop", "de")
        assert list(complete.output_ids) == PROMPT[:5]
        await serving.until_idle()


async def test_a_stop_token_of_the_caller_is_named(stub: stubs.VllmEngineStub) -> None:
    _, (complete,) = await answers(stub, asked(stop_token_ids=[PROMPT[2]], max_tokens=9))
    assert (complete.finish_reason, complete.matched_token_id) == ("stop", PROMPT[2])
    _, (complete,) = await answers(stub, asked(max_tokens=100))
    assert complete.finish_reason == "stop"
    assert complete.WhichOneof("matched_stop") is None


async def test_metadata_comes_before_the_first_token(start_backend: StartBackend) -> None:
    backend, _ = await start_backend(mocker_ttft_ms=60_000.0)
    async with smg(backend) as stub:
        call = stub.Generate(asked())
        await asyncio.wait_for(call.initial_metadata(), PATIENCE_SECONDS)
        call.cancel()


async def test_an_abort_ends_the_request_in_the_engine(start_backend: StartBackend) -> None:
    backend, serving = await start_backend(mocker_itl_ms=5.0)
    async with smg(backend) as stub:
        call = stub.Generate(asked("long", max_tokens=4000, ignore_eos=True))
        await serving.until(lambda load: load.running == 1)
        await stub.Abort(vllm.AbortRequest(request_ids=["long", "unknown", "long"]))
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            [response async for response in call]
        assert failure.value.code() is grpc.StatusCode.CANCELLED
        await serving.until_idle()
        # The id is free again, and an abort that comes too late ends nothing.
        await stub.Abort(vllm.AbortRequest(request_ids=["long"]))
        assert (await answers(stub, asked("long", max_tokens=2)))[1][0].finish_reason == "length"


async def test_a_duplicate_id_is_refused_and_leaves_the_first_request_to_its_abort(
    start_backend: StartBackend,
) -> None:
    backend, serving = await start_backend(mocker_itl_ms=5.0)
    async with smg(backend) as stub:
        call = stub.Generate(asked("twice", max_tokens=4000, ignore_eos=True))
        await serving.until(lambda load: load.running == 1)
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await answers(stub, asked("twice"))
        assert failure.value.code() is grpc.StatusCode.ALREADY_EXISTS
        await stub.Abort(vllm.AbortRequest(request_ids=["twice"]))
        await serving.until_idle()
        call.cancel()


async def test_a_caller_that_leaves_aborts_its_request(start_backend: StartBackend) -> None:
    backend, serving = await start_backend(mocker_itl_ms=5.0)
    async with smg(backend) as stub:
        call = stub.Generate(asked(max_tokens=4000, ignore_eos=True))
        await call.read()
        call.cancel()
        await serving.until_idle()


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (vllm.GenerateRequest(text="abc"), "tokenized.input_ids"),
        (vllm.GenerateRequest(), "tokenized.input_ids"),
        (asked(prompt_logprobs=1), "sampling_params.prompt_logprobs"),
        (asked(truncate_prompt_tokens=1), "sampling_params.truncate_prompt_tokens"),
        (asked(logprobs=-1), "sampling_params"),
        (asked(logit_bias={-1: 1.0}), "sampling_params"),
        (asked(stop=[""]), "stop"),
        (asked(temperature=-1), "temperature"),
    ],
)
async def test_what_cannot_be_done_is_refused_with_the_field(
    stub: stubs.VllmEngineStub, request_: vllm.GenerateRequest, field: str
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await answers(stub, request_)
    assert failure.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert field in (failure.value.details() or "")


async def test_media_is_refused(stub: stubs.VllmEngineStub) -> None:
    request = asked()
    request.media_refs.items.add(url="data:,")
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await answers(stub, request)
    assert failure.value.details() == "media_refs: not supported"


async def test_the_rest_of_the_service_is_unimplemented(stub: stubs.VllmEngineStub) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await stub.FlushCache(common.FlushCacheRequest())
    assert failure.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_model_server_and_load_are_described(start_backend: StartBackend) -> None:
    backend, _ = await start_backend(served_model_name=("echo",), mocker_itl_ms=5.0)
    async with smg(backend) as stub:
        config = (await backend.backend.client.info()).config
        model = await stub.GetModelInfo(vllm.GetModelInfoRequest())
        assert (model.served_model_name, model.max_context_length) == ("echo", config.context_length)
        assert list(model.eos_token_ids) == list(config.eos_token_ids)
        assert isinstance(json.loads(model.default_sampling_params_json), dict)
        call = stub.Generate(asked(max_tokens=4000, ignore_eos=True))
        await call.read()
        server = await stub.GetServerInfo(vllm.GetServerInfoRequest())
        assert (server.active_requests, server.server_type) == (1, "vllm-grpc")
        (load,) = (await stub.GetLoads(vllm.GetLoadsRequest())).loads
        assert (load.num_running_reqs, load.num_waiting_reqs) == (1, 0)
        assert 0 < load.token_usage < 1
        assert 0 < load.num_used_tokens < load.max_total_num_tokens
        call.cancel()


async def test_it_is_healthy_only_while_the_engine_accepts_requests(start_backend: StartBackend) -> None:
    backend, serving = await start_backend()
    async with smg(backend) as stub:
        assert (await stub.HealthCheck(vllm.HealthCheckRequest())).healthy
        async for _ in serving.engine.Drain(pb.DrainRequest()):
            pass
        health = await stub.HealthCheck(vllm.HealthCheckRequest())
        assert not health.healthy
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await answers(stub, asked())
        assert failure.value.code() is grpc.StatusCode.UNAVAILABLE


async def unzipped(stub: stubs.VllmEngineStub) -> dict[str, bytes]:
    chunks = [chunk async for chunk in stub.GetTokenizer(common.GetTokenizerRequest())]
    archive = b"".join(chunk.data for chunk in chunks)
    assert [chunk.sha256 for chunk in chunks[:-1]] == [""] * (len(chunks) - 1)
    assert chunks[-1].sha256 == hashlib.sha256(archive).hexdigest()
    with zipfile.ZipFile(io.BytesIO(archive)) as opened:
        return {name: opened.read(name) for name in opened.namelist()}


async def test_the_engines_tokenizer_is_handed_on(
    stub: stubs.VllmEngineStub, text_backend: TextBackend
) -> None:
    files = await unzipped(stub)
    assert files == await text_backend.backend.client.tokenizer_files()
    assert BackendTokenizer.from_files(files).encode("abc") == list(b"abc")


async def test_a_tokenizer_folder_comes_before_the_engines(text_backend: TextBackend, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "weights.bin").write_text("not for anyone")
    async with smg(text_backend, tokenizer=tmp_path) as stub:
        assert await unzipped(stub) == {"tokenizer.json": b"{}"}


def test_a_large_tokenizer_comes_in_pieces() -> None:
    noise = b"".join(hashlib.sha256(bytes([i % 256, i // 256])).digest() for i in range(2**16))
    chunks = list(tokenizer_chunks({"tokenizer.json": noise}))
    assert [len(chunk.data) for chunk in chunks[:-1]] == [CHUNK_BYTES, CHUNK_BYTES]
    assert 0 < len(chunks[-1].data) < CHUNK_BYTES
    assert [bool(chunk.sha256) for chunk in chunks] == [False, False, True]


async def test_an_address_in_use_is_named(text_backend: TextBackend) -> None:
    async with smg_face(text_backend, ServeOptions(smg_port=0)) as face:
        port = int(face.address.rpartition(":")[2])
        with pytest.raises(AddressError, match=f"127.0.0.1:{port}"):
            async with smg_face(text_backend, ServeOptions(smg_port=port)):
                pass


def embedding(ids: Sequence[int], request_id: str = "e") -> vllm.EmbedRequest:
    return vllm.EmbedRequest(request_id=request_id, tokenized=vllm.TokenizedInput(input_ids=ids))


async def test_an_input_gets_its_vector(text_backend: TextBackend, stub: stubs.VllmEngineStub) -> None:
    answer = await stub.Embed(embedding(PROMPT))
    expected = await text_backend.embed([PROMPT], pb.PreprocessedEmbeddingRequest(), path="inputs")
    assert list(answer.embedding) == expected.vectors[0].tolist()
    assert (answer.prompt_tokens, answer.embedding_dim) == (len(PROMPT), len(answer.embedding))


@pytest.mark.parametrize("ids", [[], [258], [1] * 4097])
async def test_an_input_that_cannot_be_embedded_is_named(
    stub: stubs.VllmEngineStub, ids: Sequence[int]
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await stub.Embed(embedding(ids))
    assert failure.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert failure.value.details().startswith("tokenized.input_ids")
    assert "input_ids[0]: exceeds" not in failure.value.details()


async def test_an_engine_without_embeddings_says_so(
    text_backend: TextBackend, stub: stubs.VllmEngineStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*args: object, **kwargs: object) -> None:
        raise failed(
            grpc.StatusCode.UNIMPLEMENTED, pb.ERROR_REASON_UNSUPPORTED, "this engine has no embeddings"
        )

    monkeypatch.setattr(text_backend.backend, "embed", refuse)
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await stub.Embed(embedding(PROMPT))
    assert failure.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_an_embedding_is_aborted_by_id(start_backend: StartBackend) -> None:
    backend, serving = await start_backend(mocker_ttft_ms=60_000.0)
    async with smg(backend) as stub:
        call = stub.Embed(embedding(PROMPT, "mine"))
        await serving.until(lambda load: load.waiting == 1)
        await stub.Abort(vllm.AbortRequest(request_ids=["mine"]))
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await call
        assert failure.value.code() is grpc.StatusCode.CANCELLED
        await serving.until_idle(5)


@pytest.mark.parametrize("method", ["Generate", "Abort", "GetTokenizer"])
async def test_bytes_that_are_no_request_are_refused_and_quote_nothing_of_ours(
    text_backend: TextBackend, method: str
) -> None:
    async with (
        smg_face(text_backend, ServeOptions(smg_port=0)) as face,
        grpc.aio.insecure_channel(face.address.removeprefix("grpc://")) as channel,
    ):
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await channel.unary_stream(f"/vllm.grpc.engine.VllmEngine/{method}")(b"\0").read()
    assert refusal.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert refusal.value.details() == "request: malformed protobuf"
