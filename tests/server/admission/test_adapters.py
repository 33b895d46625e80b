"""Adapters through a real server: what AdminService promises, and which requests find what."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import grpc
import pytest
from hypothesis import given, settings, strategies as st

from enginewire import v1 as pb
from enginewire.server.admission.adapters import AdapterFolder
from enginewire.server.config.options import ServerOptions
from enginewire.server.engines.interface import AdapterSource
from enginewire.server.engines.mocker.engine import MockerEngine
from enginewire.server.engines.mocker.options import MockerOptions
from enginewire.server.failures import InvalidRequest, ModelNotFound
from enginewire.server.load_engine import EngineUnavailable, make_engine
from tests.long import examples
from tests.patience import PATIENCE_SECONDS
from tests.server.admin_calls import admin, load, unload
from tests.server.serving import Serving, abort_frame, ask, detail_of, submit

NO_SOURCE = "source: no such folder below the adapter folder"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An adapter folder with three adapters, beside one that it must not reach."""
    for name, rank in (("root/one", 4), ("root/two", 8), ("root/deep/three", 2), ("secret", 1)):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "adapter_config.json").write_text(f'{{"r": {rank}}}')
    (tmp_path / "root" / "file").write_text("no folder")
    (tmp_path / "root" / "out").symlink_to(tmp_path / "secret")
    (tmp_path / "root" / "circle").symlink_to(tmp_path / "root" / "circle")
    (tmp_path / "root" / "in").symlink_to(tmp_path / "root" / "one")
    return tmp_path / "root"


@pytest.fixture
async def serving(engine_server, folder) -> Serving:
    return await engine_server(adapter_folder=folder, max_loras=2)


async def listed(serving: Serving) -> list[str]:
    answer = await admin(serving).ListAdapters(pb.ListAdaptersRequest())
    return [adapter.name for adapter in answer.adapters]


async def refusal(call: Any) -> tuple[grpc.StatusCode, pb.ErrorDetail, str]:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call
    return refused.value.code(), detail_of(refused.value), refused.value.details()


async def test_loads_and_unloads_show_as_soon_as_they_are_answered(serving):
    assert await load(serving, "b", "two") == pb.Adapter(name="b", source="two", rank=8)
    assert await load(serving, "a", "./deep//three/") == pb.Adapter(name="a", source="deep/three", rank=2)
    assert await listed(serving) == ["a", "b"]
    await unload(serving, "b")
    assert await listed(serving) == ["a"]


async def test_the_capability_and_the_limit_are_advertised(serving, engine_server):
    config = (await serving.discovery.GetEngineInfo(pb.GetEngineInfoRequest())).config
    assert (config.capabilities.lora, config.limits.max_loras) == (True, 2)
    without = await engine_server()
    config = (await without.discovery.GetEngineInfo(pb.GetEngineInfoRequest())).config
    assert (config.capabilities.lora, config.limits.HasField("max_loras")) == (False, False)


async def test_loading_the_same_again_is_ok_and_another_is_refused(serving, folder):
    first = await load(serving, "a", "one")
    assert await load(serving, "a", "one") == first
    code, detail, _ = await refusal(load(serving, "a", "two"))
    assert (code, detail.reason) == (grpc.StatusCode.ALREADY_EXISTS, pb.ERROR_REASON_ADAPTER_EXISTS)
    (folder / "one" / "adapter_config.json").write_text('{"r": 4, "lora_alpha": 9}')
    code, detail, _ = await refusal(load(serving, "a", "one"))
    assert (code, detail.field) == (grpc.StatusCode.ALREADY_EXISTS, "name")
    assert await listed(serving) == ["a"]


async def test_beyond_the_limit_nothing_is_loaded_and_nothing_evicted(serving):
    await load(serving, "a", "one")
    await load(serving, "b", "two")
    code, detail, _ = await refusal(load(serving, "c", "deep/three"))
    assert (code, detail.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, pb.ERROR_REASON_ADAPTER_LIMIT)
    assert detail.metadata["limit"] == "2"
    assert await listed(serving) == ["a", "b"]
    assert (await load(serving, "a", "one")).rank == 4, "loading again needs no room"


@pytest.mark.parametrize("name", ["", "a b", "x" * 129, "../a", "ä"])
async def test_a_name_that_is_none_is_refused(serving, name):
    code, detail, _ = await refusal(load(serving, name, "one"))
    assert (code, detail.field) == (grpc.StatusCode.INVALID_ARGUMENT, "name")


async def test_the_name_of_the_model_is_taken(engine_server, folder):
    serving = await engine_server(adapter_folder=folder, served_model_name=("shown", "alias"))
    for name in ("mocker", "shown", "alias"):
        code, _, _ = await refusal(load(serving, name, "one"))
        assert code is grpc.StatusCode.ALREADY_EXISTS


@pytest.mark.parametrize(
    "source",
    [
        "", ".", "..", "../root/one", "one/../one", "/etc", "/", "nothing", "file", "file/x", "out", "circle",
        "../secret", "one\0", "x" * 5000, "one/adapter_config.json",
    ],
)  # fmt: skip
async def test_what_is_no_folder_below_the_root_is_not_found_in_the_same_words(serving, source):
    code, detail, text = await refusal(load(serving, "a", source))
    assert (code, detail.reason) == (grpc.StatusCode.NOT_FOUND, pb.ERROR_REASON_MODEL_NOT_FOUND)
    assert (text, detail.field) == (NO_SOURCE, "source")


async def test_an_absolute_path_into_the_root_is_not_found_either(serving, folder):
    assert (await refusal(load(serving, "a", str(folder / "one"))))[2] == NO_SOURCE


async def test_a_link_within_the_root_is_followed(serving):
    assert await load(serving, "a", "in") == pb.Adapter(name="a", source="one", rank=4)


def test_a_file_that_is_a_link_out_of_the_root_is_not_read(folder):
    (folder / "two" / "adapter_model.safetensors").symlink_to(folder.parent / "secret/adapter_config.json")
    with pytest.raises(ModelNotFound, match=NO_SOURCE):
        AdapterFolder(folder).open("a", "two")


def test_a_file_that_is_no_file_is_not_opened(folder):
    os.mkfifo(folder / "two" / "adapter_model.safetensors")  # reading it would wait for ever
    with pytest.raises(ModelNotFound, match=NO_SOURCE):
        AdapterFolder(folder).open("a", "two")


def test_bytes_that_move_from_one_file_to_the_next_make_another_adapter(folder):
    digests = set()
    for config, weights in (("", "{}"), ("{", "}"), ("{}", "")):
        (folder / "two" / "adapter_config.json").write_text(config)
        (folder / "two" / "adapter_model.safetensors").write_text(weights)
        digests.add(AdapterFolder(folder).open("a", "two").digest)
    assert len(digests) == 3


def test_a_file_that_is_too_large_is_not_read(folder):
    with (folder / "two" / "adapter_model.safetensors").open("wb") as file:
        file.truncate(2**33)  # takes no room on the disk
    with pytest.raises(InvalidRequest, match=r"adapter_model.safetensors is too large"):
        AdapterFolder(folder).open("a", "two")


@settings(max_examples=examples(200))
@given(st.lists(st.sampled_from(["..", ".", "", "one", "out", "in", "deep", "three", "~", "\\"]), max_size=6))
def test_no_path_leads_out_of_the_root(tmp_path_factory, parts):
    root = Path(tmp_path_factory.getbasetemp()) / "confined"
    if not root.exists():
        (root / "root/one/deep/three").mkdir(parents=True)
        (root / "root/deep/one").mkdir(parents=True)
        (root / "secret/one").mkdir(parents=True)
        (root / "root/out").symlink_to(root / "secret")
        (root / "root/in").symlink_to(root / "root/deep")
    try:
        found = AdapterFolder(root / "root").open("a", "/".join(parts))
    except ModelNotFound:
        return
    assert root / "root" in found.folder.resolve().parents
    assert found.folder == root / "root" / found.source


async def test_unloading_what_is_not_loaded_is_not_found(serving):
    code, detail, _ = await refusal(unload(serving, "a"))
    assert (code, detail.field) == (grpc.StatusCode.NOT_FOUND, "name")


async def test_requests_choose_an_adapter_by_lora_name_or_by_model(serving):
    await load(serving, "A", "one")
    by_hint = await serving.generate(ask("r1", b"xyz", routing=pb.RoutingHints(lora_name="A")))
    by_model = await serving.generate(ask("r2", b"xyz", model="A"))
    by_both = await serving.generate(ask("r3", b"xyz", model="A", routing=pb.RoutingHints(lora_name="A")))
    with_base = await serving.generate(
        ask("r4", b"xyz", model="mocker", routing=pb.RoutingHints(lora_name="A"))
    )
    assert bytes(by_hint.tokens()[:4]) == b"Axyz"
    assert by_hint.tokens() == by_model.tokens() == by_both.tokens() == with_base.tokens()
    assert bytes((await serving.generate(ask("r5", b"xyz"))).tokens()[:3]) == b"xyz"


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"routing": pb.RoutingHints(lora_name="B")}, "routing.lora_name"),
        ({"model": "B"}, "model"),
        ({"model": "B", "routing": pb.RoutingHints(lora_name="B")}, "model"),
    ],
)
async def test_an_adapter_that_is_not_loaded_is_never_served_by_the_base(serving, fields, field):
    await load(serving, "A", "one")
    answer = await serving.generate(ask(**fields))
    assert (answer.failure.reason, answer.failure.field) == (pb.ERROR_REASON_MODEL_NOT_FOUND, field)
    assert not answer.outputs


class PreparingMocker(MockerEngine):
    """Compiles nothing, but would be asked to."""

    async def start(self, worker_id: int) -> pb.EngineConfig:
        config = await super().start(worker_id)
        config.capabilities.guided_modes.append(pb.GUIDED_MODE_REGEX)
        return config

    async def prepare(self, request: pb.PreprocessedRequest) -> None:
        raise AssertionError("an adapter that is not loaded is noticed first")


async def test_a_guided_request_hears_of_it_before_its_grammar_is_compiled(engine_server, folder):
    serving = await engine_server(PreparingMocker(), adapter_folder=folder)
    request = ask(model="B", sampling_options={"guided_decoding": {"regex": "a"}})
    assert (await serving.generate(request)).failure.reason == pb.ERROR_REASON_MODEL_NOT_FOUND


async def test_two_different_adapters_in_one_request_are_refused(serving):
    await load(serving, "A", "one")
    answer = await serving.generate(ask(model="A", routing=pb.RoutingHints(lora_name="B")))
    assert answer.failure.reason == pb.ERROR_REASON_INVALID_REQUEST
    assert answer.failure.field == "routing.lora_name"


async def test_an_adapter_in_use_stays_and_its_requests_go_on(engine_server, folder):
    serving = await engine_server(adapter_folder=folder, mocker_itl_ms=5.0)
    await load(serving, "A", "one")
    call = serving.engine.GenerateMultiplexed(iter([submit(1, ask(max_tokens=60, model="A"))]))
    streaming = asyncio.create_task(read_tokens(call))
    await serving.until(lambda now: now.running == 1)
    code, detail, _ = await refusal(unload(serving, "A"))
    assert (code, detail.reason) == (grpc.StatusCode.FAILED_PRECONDITION, pb.ERROR_REASON_ADAPTER_IN_USE)
    assert await listed(serving) == ["A"]
    assert len(await streaming) == 60
    await unload(serving, "A")
    assert (await serving.generate(ask("r2", model="A"))).failure.reason == pb.ERROR_REASON_MODEL_NOT_FOUND


async def read_tokens(call: Any) -> list[int]:
    return [token async for frame in call for token in _tokens(frame)]


def _tokens(frame: pb.GenerateMultiplexedResponse) -> list[int]:
    return [*frame.token_ids, *(token for event in frame.events for token in event.output.token_ids)]


async def test_an_aborted_request_uses_its_adapter_no_longer(engine_server, folder):
    serving = await engine_server(adapter_folder=folder, mocker_itl_ms=5.0)
    await load(serving, "A", "one")
    frames: asyncio.Queue[pb.GenerateMultiplexedRequest | None] = asyncio.Queue()
    call = serving.engine.GenerateMultiplexed(iter_queue(frames))
    frames.put_nowait(submit(1, ask(max_tokens=2000, model="A")))
    await serving.until(lambda now: now.running == 1)
    frames.put_nowait(abort_frame(1))
    frames.put_nowait(None)
    await read_tokens(call)
    await unload(serving, "A")


async def iter_queue(frames: asyncio.Queue[pb.GenerateMultiplexedRequest | None]):
    while (frame := await frames.get()) is not None:
        yield frame


async def test_inputs_are_embedded_with_the_adapter_that_they_name(serving):
    await load(serving, "a", "one")

    async def vector(model: str) -> list[float]:
        request = pb.PreprocessedEmbeddingRequest(token_ids=[{"token_ids": b"text"}], model=model)
        answer = await serving.embedding.Embed(pb.EmbedRequest(request_id="e", request=request))
        return list(answer.output.embeddings[0].values)

    assert await vector("a") != await vector("") == await vector("mocker")
    code, detail, _ = await refusal(vector("b"))
    assert (code, detail.field) == (grpc.StatusCode.NOT_FOUND, "model")


async def test_an_adapter_that_embeds_is_in_use(engine_server, folder):
    serving = await engine_server(MockerEngine(MockerOptions(ttft_ms=60_000)), adapter_folder=folder)
    await load(serving, "a", "one")
    request = pb.PreprocessedEmbeddingRequest(token_ids=[{"token_ids": b"text"}], model="a")
    call = serving.embedding.Embed(pb.EmbedRequest(request_id="e", request=request))
    await serving.until(lambda load: load.waiting == 1)
    assert (await refusal(unload(serving, "a")))[0] is grpc.StatusCode.FAILED_PRECONDITION
    call.cancel()


class SlowEngine(MockerEngine):
    """Loads when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.may_load = asyncio.Event()
        self.num_loads = 0

    async def load_adapter(self, adapter: AdapterSource) -> int:
        self.num_loads += 1
        await self.may_load.wait()
        return await super().load_adapter(adapter)


async def test_a_load_whose_caller_hung_up_goes_on_to_its_end(engine_server, folder):
    engine = SlowEngine()
    serving = await engine_server(engine, adapter_folder=folder)
    call = admin(serving).LoadAdapter(pb.LoadAdapterRequest(name="a", source="one"))
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not engine.num_loads:  # noqa: ASYNC110  # there is no event to await
            await asyncio.sleep(0.005)
    call.cancel()
    assert await listed(serving) == []
    engine.may_load.set()
    async with asyncio.timeout(PATIENCE_SECONDS):
        while await listed(serving) != ["a"]:  # noqa: ASYNC110  # there is no event to await
            await asyncio.sleep(0.005)


async def test_loads_at_once_are_loaded_one_after_the_other(engine_server, folder):
    engine = SlowEngine()
    serving = await engine_server(engine, adapter_folder=folder, max_loras=1)
    loads = [asyncio.create_task(load(serving, "a", "one")) for _ in range(8)]
    await asyncio.sleep(0.05)
    engine.may_load.set()
    answers = await asyncio.gather(*loads)
    assert all(answer == answers[0] for answer in answers)
    assert engine.num_loads == 1


def test_a_folder_is_refused_for_an_engine_without_adapters(folder):
    options = ServerOptions(engine="tests.server.test_load_engine:Streams", adapter_folder=folder)
    with pytest.raises(EngineUnavailable, match=r"--adapter-folder: --engine .* serves no adapters"):
        make_engine(options)


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(EngineUnavailable, match=r"--adapter-folder .*nothing: no such folder"):
        make_engine(ServerOptions(engine="mocker", adapter_folder=tmp_path / "nothing"))


@pytest.mark.parametrize("config", ["[]", "{", '{"r": 0}', '{"r": true}', '{"r": "x"}'])
async def test_the_mocker_refuses_a_configuration_that_is_none(serving, folder, config):
    (folder / "one" / "adapter_config.json").write_text(config)
    code, detail, text = await refusal(load(serving, "a", "one"))
    assert (code, detail.field) == (grpc.StatusCode.INVALID_ARGUMENT, "source")
    assert str(folder) not in text
    assert await listed(serving) == []
