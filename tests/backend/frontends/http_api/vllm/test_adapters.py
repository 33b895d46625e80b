"""Adapters that are loaded over HTTP, as vLLM's routes do."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest

from enginewire.backend.backend import Backend
from enginewire.backend.engines.connection.client import EngineClient
from enginewire.backend.engines.endpoints import Endpoints
from enginewire.backend.frontends.text_backend import TextBackend
from enginewire.backend.prompting.tokenizer import BackendTokenizer
from tests.backend.frontends.conftest import StartBackend
from tests.backend.frontends.http_api.serving import serving_http
from tests.patience import PATIENCE_SECONDS
from tests.server.conftest import StartServer

LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
POLITE = {"lora_name": "polite", "lora_path": "folder"}


@pytest.fixture
def adapters(tmp_path: Path) -> Path:
    for name in ("folder", "other"):
        (tmp_path / name).mkdir()
    return tmp_path


@asynccontextmanager
async def asking(backend: TextBackend, **given: object) -> AsyncIterator[httpx2.AsyncClient]:
    async with (
        serving_http(backend, **{"allow_runtime_lora_updating": True} | given) as face,
        httpx2.AsyncClient(base_url=face.address, timeout=PATIENCE_SECONDS) as client,
    ):
        yield client


async def test_an_adapter_comes_answers_and_goes(start_backend: StartBackend, adapters: Path) -> None:
    backend, _ = await start_backend(adapter_folder=adapters)
    async with asking(backend) as client:
        for _ in range(2):
            loaded = await client.post(LOAD, json=POLITE)
            assert (loaded.status_code, loaded.text) == (
                200,
                "Success: LoRA adapter 'polite' added successfully.",
            )
        assert loaded.headers["content-type"].startswith("text/plain")
        answer = await client.post("/v1/completions", json={"model": "polite", "prompt": "x"})
        assert (answer.json()["model"], answer.json()["choices"][0]["text"]) == ("polite", "politex")
        gone = await client.post(UNLOAD, json={"lora_name": "polite"})
        assert (gone.status_code, gone.text) == (
            200,
            "Success: LoRA adapter 'polite' removed successfully.",
        )
        again = await client.post(UNLOAD, json={"lora_name": "polite"})
        assert (again.status_code, again.json()["error"]["param"]) == (404, "lora_name")


async def test_every_engine_gets_it_and_a_failure_can_be_mended(
    engine_server: StartServer, adapters: Path
) -> None:
    # The second engine has a folder of its own.
    other = adapters / "second"
    (other / "folder").mkdir(parents=True)
    servings = [await engine_server(adapter_folder=folder) for folder in (adapters, other)]
    clients = [EngineClient(serving.server.target) for serving in servings]
    tokenizer = BackendTokenizer.from_files(await clients[0].tokenizer_files())

    async def names() -> list[list[str]]:
        return [[each.name for each in await client.adapters()] for client in clients]

    async with (
        Endpoints(clients) as engines,
        asking(TextBackend(Backend(engines, tokenizer.vocabulary), tokenizer)) as client,
    ):
        assert (await client.post(LOAD, json=POLITE)).status_code == 200
        assert await names() == [["polite"], ["polite"]]
        assert (await client.post(UNLOAD, json=POLITE)).status_code == 200
        assert await names() == [[], []]
        shutil.rmtree(other / "folder")
        refused = await client.post(LOAD, json=POLITE)
        assert (refused.status_code, refused.json()["error"]["param"]) == (404, "lora_path")
        assert await names() == [["polite"], []]
        # What only one has is gone from both.
        assert (await client.post(UNLOAD, json=POLITE)).status_code == 200
        assert (await client.post(UNLOAD, json=POLITE)).status_code == 404
        (other / "folder").mkdir()
        assert (await client.post(LOAD, json=POLITE)).status_code == 200
        assert await names() == [["polite"], ["polite"]]
        assert (await client.post(UNLOAD, json=POLITE)).status_code == 200


async def test_nobody_may_unless_the_operator_says_so(start_backend: StartBackend, adapters: Path) -> None:
    backend, _ = await start_backend(adapter_folder=adapters)
    async with asking(backend, allow_runtime_lora_updating=False) as client:
        for path in (LOAD, UNLOAD):
            refused = await client.post(path, json=POLITE)
            assert (refused.status_code, refused.json()["error"]["code"]) == (403, "forbidden")
            assert "--allow-runtime-lora-updating" in refused.json()["error"]["message"]
        assert len((await client.get("/v1/models")).json()["data"]) == 1


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        (LOAD, {"lora_path": "folder"}, 400, "lora_name"),
        (LOAD, {"lora_name": "polite"}, 400, "lora_path"),
        (LOAD, {"lora_name": 7, "lora_path": "folder"}, 400, "lora_name"),
        (LOAD, {"lora_name": "a b", "lora_path": "folder"}, 400, "lora_name"),
        (LOAD, {"lora_name": "polite", "lora_path": "../folder"}, 404, "lora_path"),
        (LOAD, {"lora_name": "polite", "lora_path": "/etc"}, 404, "lora_path"),
        (LOAD, {"lora_name": "known", "lora_path": "other"}, 409, "lora_name"),
        (LOAD, POLITE | {"load_inplace": True}, 400, "load_inplace"),
        (LOAD, POLITE | {"base_model_name": "another"}, 404, "base_model_name"),
        (UNLOAD, {}, 400, "lora_name"),
        (UNLOAD, {"lora_name": "known", "lora_int_id": 1}, 400, "lora_int_id"),
    ],
)
async def test_what_is_wrong_is_refused_with_its_field(
    start_backend: StartBackend,
    adapters: Path,
    path: str,
    body: dict[str, object],
    status: int,
    param: str,
) -> None:
    backend, _ = await start_backend(adapter_folder=adapters)
    async with asking(backend) as client:
        assert (await client.post(LOAD, json={"lora_name": "known", "lora_path": "folder"})).is_success
        refused = await client.post(path, json=body)
        assert (refused.status_code, refused.json()["error"]["param"]) == (status, param)
        names = [model["id"] for model in (await client.get("/v1/models")).json()["data"]]
    assert names == ["mocker", "known"]


async def test_an_engine_without_adapters_says_so(text_backend: TextBackend) -> None:
    async with asking(text_backend) as client:
        for path in (LOAD, UNLOAD):
            refused = await client.post(path, json=POLITE)
            assert (refused.status_code, refused.json()["error"]["code"]) == (400, "unsupported")


async def test_an_adapter_in_use_stays(start_backend: StartBackend, adapters: Path) -> None:
    backend, serving = await start_backend(adapter_folder=adapters, mocker_itl_ms=20.0)
    async with asking(backend) as client:
        await client.post(LOAD, json=POLITE)
        endless = {"model": "polite", "prompt": "x", "max_tokens": 4000, "ignore_eos": True, "stream": True}
        async with client.stream("POST", "/v1/completions", json=endless) as answer:
            lines = answer.aiter_lines()
            await anext(lines)
            refused = await client.post(UNLOAD, json=POLITE)
            assert (refused.status_code, refused.json()["error"]["code"]) == (409, "adapter_in_use")
        await serving.until_idle()
        assert (await client.post(UNLOAD, json=POLITE)).status_code == 200
