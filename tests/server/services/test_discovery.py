"""What the server says about itself: facts, load, tokenizer."""

from __future__ import annotations

import asyncio
import hashlib

import grpc
import pytest

from enginewire import v1 as pb
from enginewire.server.engines.interface import Tokenizer
from enginewire.server.engines.mocker.engine import MockerEngine
from enginewire.server.services import discovery
from enginewire.server.services.discovery import manifest_of
from tests.server.serving import ask, detail_of

FILES = {"tokenizer.json": b"0123456789", "empty.json": b"", "a.json": b"a" * 7}


class EngineWithTokenizer(MockerEngine):
    def __init__(self, tokenizer: Tokenizer | None) -> None:
        super().__init__()
        self._tokenizer = tokenizer

    async def start(self, worker_id: int) -> pb.EngineConfig:
        config = await super().start(worker_id)
        config.capabilities.tokenizer = self._tokenizer is not None
        return config

    def tokenizer(self) -> Tokenizer | None:
        return self._tokenizer


async def read_tokenizer(serving, digest: str = "") -> tuple[pb.TokenizerManifest, list[pb.TokenizerChunk]]:
    request = pb.GetTokenizerRequest(if_none_match=digest)
    first, *others = [piece async for piece in serving.discovery.GetTokenizer(request)]
    return first.manifest, [piece.chunk for piece in others]


async def test_info_holds_what_the_engine_and_the_shell_advertise_and_never_changes(engine_server):
    serving = await engine_server(
        served_model_name=("shown", "alias"), instance_id="one", max_num_queued_reqs=5
    )
    info = await serving.discovery.GetEngineInfo(pb.GetEngineInfoRequest())
    assert (info.config.model, info.config.served_model_name) == ("mocker", "shown")
    assert list(info.config.aliases) == ["alias"]
    assert info.config.capabilities.multiplexed
    assert info.config.limits.max_num_queued_reqs == 5
    assert (info.engine_name, info.instance_id) == ("enginewire-mocker", "one")
    assert info.contract_revision == pb.CONTRACT_REVISION
    assert info.schema_digest == pb.schema_digest()
    await serving.generate(ask())
    assert await serving.discovery.GetEngineInfo(pb.GetEngineInfoRequest()) == info


async def test_two_servers_have_lives_and_names_of_their_own(engine_server):
    infos = [
        await (await engine_server()).discovery.GetEngineInfo(pb.GetEngineInfoRequest()) for _ in range(2)
    ]
    assert infos[0].instance_id != infos[1].instance_id
    assert infos[0].engine_lifetime_id != infos[1].engine_lifetime_id


async def test_load_follows_what_runs_and_waits(engine_server):
    serving = await engine_server(max_num_seqs=2, block_size=4, num_gpu_blocks_override=100)
    load = await serving.load()
    assert (load.state, load.kv_blocks_total) == (pb.ENGINE_STATE_READY, 100)
    calls = [serving.engine.Generate(ask(f"r{i}", max_tokens=50)) for i in range(3)]
    for call in calls:
        await call.initial_metadata()
        call.cancel()
    await serving.until_idle()


async def test_watch_sends_the_load_at_once_and_then_after_changes_only(engine_server):
    serving = await engine_server(mocker_itl_ms=5.0)
    call = serving.discovery.WatchLoad(pb.WatchLoadRequest(min_interval_ms=10))
    assert (await call.read()).load.running == 0
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(unchanged := asyncio.ensure_future(call.read())), 0.1)
    await serving.generate(ask(max_tokens=20))
    loads = [(await unchanged).load]
    while loads[-1].requests_finished == 0:
        loads.append((await call.read()).load)
    call.cancel()
    assert any(load.running for load in loads)
    assert loads[-1].running == 0


async def test_watching_too_often_is_refused(engine_server):
    serving = await engine_server()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await serving.discovery.WatchLoad(pb.WatchLoadRequest(min_interval_ms=9)).read()
    assert detail_of(caught.value).field == "min_interval_ms"


async def test_the_tokenizer_comes_manifest_first_then_in_chunks_in_its_order(engine_server, monkeypatch):
    monkeypatch.setattr(discovery, "CHUNK_BYTES", 4)
    serving = await engine_server(EngineWithTokenizer(Tokenizer(FILES)))
    manifest, chunks = await read_tokenizer(serving)
    assert [file.name for file in manifest.files] == sorted(FILES)
    received = {file.name: b"" for file in manifest.files}
    for chunk in chunks:
        assert 0 < len(chunk.data) <= 4
        assert chunk.offset == len(received[chunk.name])
        received[chunk.name] += chunk.data
    assert received == FILES
    for file in manifest.files:
        assert file.size == len(FILES[file.name])
        assert file.sha256 == hashlib.sha256(FILES[file.name]).hexdigest()
    assert [chunk.name for chunk in chunks] == sorted(chunk.name for chunk in chunks)


async def test_who_has_the_tokenizer_gets_the_manifest_alone(engine_server):
    serving = await engine_server()
    manifest, chunks = await read_tokenizer(serving)
    assert chunks
    assert await read_tokenizer(serving, manifest.digest) == (manifest, [])
    assert await read_tokenizer(serving, "0" * 64) == (manifest, chunks)


async def test_no_tokenizer_is_not_found(engine_server):
    engine = EngineWithTokenizer(None)
    serving = await engine_server(engine)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await read_tokenizer(serving)
    assert caught.value.code() == grpc.StatusCode.NOT_FOUND
    assert "--tokenizer" in caught.value.details()
    detail_of(caught.value)


def test_the_digest_is_the_one_of_the_contract_page():
    files = {"tokenizer.json": b"{}", "tokenizer_config.json": b"{}"}
    assert manifest_of(files).digest == "29e88a1396af11701978d989b57a561c6f3e65f75c0e72c093952c3bb49edc02"


async def test_before_the_start_there_are_no_facts_but_a_load(engine_server):
    serving = await engine_server(is_started=False)
    assert (await serving.load()).state == pb.ENGINE_STATE_STARTING
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await serving.discovery.GetEngineInfo(pb.GetEngineInfoRequest())
    assert detail_of(caught.value).reason == pb.ERROR_REASON_NOT_STARTED
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await read_tokenizer(serving)
    assert detail_of(caught.value).reason == pb.ERROR_REASON_NOT_STARTED
    assert (await serving.generate(ask())).failure.reason == pb.ERROR_REASON_NOT_STARTED
    await serving.server.start()
    assert (await serving.generate(ask())).usage() == (5, 8)
