from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from posixpath import dirname, normpath

import httpx2
import pytest
from openai import APIError, AsyncOpenAI, NotFoundError

from enginewire import v1 as pb
from enginewire.backend.config import ServeOptions
from enginewire.backend.frontends.http_api.refusal import STATUS_OF_REASON
from enginewire.backend.frontends.http_api.server import http_face
from enginewire.backend.frontends.text_backend import TextBackend
from enginewire.listening.sockets import AddressError
from enginewire.version import __version__
from tests.backend.frontends.conftest import StartBackend
from tests.backend.frontends.http_api.serving import sdk, serving_http
from tests.patience import PATIENCE_SECONDS
from tests.server.serving import until_true

COMPLETIONS = "/v1/completions"


@pytest.fixture
async def http(text_backend: TextBackend) -> AsyncIterator[httpx2.AsyncClient]:
    async with (
        serving_http(text_backend, max_message_bytes=4096) as face,
        httpx2.AsyncClient(base_url=face.address, timeout=PATIENCE_SECONDS) as client,
    ):
        yield client


async def test_models_are_listed_and_found_by_name(start_backend: StartBackend) -> None:
    backend, _ = await start_backend(served_model_name=("echo", "echo/alias"))
    async with sdk(backend) as client:
        models = [model.id async for model in client.models.list()]
        assert models == ["echo", "echo/alias"]
        assert (await client.models.retrieve("echo/alias")).id == "echo/alias"
        for name in models:
            answer = await client.completions.create(model=name, prompt="x")
            assert answer.model == "echo"
        with pytest.raises(NotFoundError):
            await client.models.retrieve("another")


async def test_adapters_are_models_with_a_parent(start_backend: StartBackend, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    backend, serving = await start_backend(served_model_name=("echo", "alias"), adapter_folder=tmp_path)
    admin = pb.AdminServiceStub(serving.channel)
    async with sdk(backend) as client:
        await admin.LoadAdapter(pb.LoadAdapterRequest(name="polite", source="folder"))
        parents = {model.id: model.model_extra["parent"] async for model in client.models.list()}
        assert parents == {"echo": None, "alias": None, "polite": "echo"}
        assert (await client.models.retrieve("polite")).id == "polite"
        answer = await client.completions.create(model="polite", prompt="x")
        assert (answer.model, answer.choices[0].text) == ("polite", "politex")
        await admin.UnloadAdapter(pb.UnloadAdapterRequest(name="polite"))
        with pytest.raises(NotFoundError):
            await client.models.retrieve("polite")
        with pytest.raises(NotFoundError) as refusal:
            await client.completions.create(model="polite", prompt="x")
        assert refusal.value.param == "model"


async def test_a_request_without_a_model_is_answered_by_the_served_one(http: httpx2.AsyncClient) -> None:
    answer = await http.post(COMPLETIONS, json={"prompt": "abc"})
    assert answer.json()["model"] == "mocker"
    assert answer.headers["x-request-id"] == answer.json()["id"]


async def test_health_and_version(http: httpx2.AsyncClient) -> None:
    assert (await http.get("/health")).status_code == 200
    assert (await http.get("/version")).json() == {"version": __version__}


async def test_health_and_requests_tell_that_the_engine_drains(start_backend: StartBackend) -> None:
    backend, serving = await start_backend()
    async with serving_http(backend) as face, httpx2.AsyncClient(base_url=face.address) as client:
        async for _ in serving.engine.Drain(pb.DrainRequest()):
            pass
        assert (await client.get("/health")).status_code == 503
        answer = await client.post(COMPLETIONS, json={"prompt": "x"})
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "draining"
    assert int(answer.headers["retry-after"]) >= 1


@pytest.mark.parametrize(
    ("given", "status"),
    [
        ({"content": b"{", "headers": {"content-type": "application/json"}}, 400),
        ({"content": b"[1]", "headers": {"content-type": "application/json"}}, 400),
        ({"content": b"[" * 4000, "headers": {"content-type": "application/json"}}, 400),
        ({"content": b'{"prompt": "\xff"}', "headers": {"content-type": "application/json"}}, 400),
        ({"content": b'{"prompt": "\\ud800"}', "headers": {"content-type": "application/json"}}, 400),
        ({"content": b'{"prompt": "x", "top_p": NaN}', "headers": {"content-type": "application/json"}}, 400),
        ({"json": {"prompt": "x" * 4096}}, 413),
        ({"data": {"prompt": "x"}}, 415),
        ({"content": b'{"prompt": "x"}'}, 415),
    ],
)
async def test_bodies_that_are_no_request_are_refused(
    http: httpx2.AsyncClient, given: dict[str, object], status: int
) -> None:
    answer = await http.post(COMPLETIONS, **given)
    assert answer.status_code == status
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert (await http.post(COMPLETIONS, json={"prompt": "ok"})).json()["choices"][0]["text"] == "ok"


@pytest.mark.parametrize("path", ["/completions", "/v1/v1/completions"])
async def test_who_has_v1_never_or_twice_is_told_so(http: httpx2.AsyncClient, path: str) -> None:
    error = (await http.post(path, json={"prompt": "ok"})).json()["error"]
    advice = "no such route; /v1/completions is one: does the client's base URL end with /v1, once?"
    assert (error["code"], error["message"]) == ("route_not_found", advice)


@pytest.mark.parametrize("path", ["/v2", "/v1/completion", "/enginewire/nothing", "/v1"])
async def test_who_asks_for_a_route_that_is_not_there_is_told_which_are(
    http: httpx2.AsyncClient, path: str
) -> None:
    answer = await http.post(path, json={})
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "route_not_found"
    routes = answer.json()["routes"]
    assert {"POST /v1/completions", "GET /v1/models", "GET /health", "POST /enginewire/abort"} <= set(routes)
    assert "GET /v1/models/{name}" in routes
    for method, path in (route.split() for route in routes):
        if "{" not in path and path != "/enginewire/events":
            assert (await http.request(method, path)).status_code in (200, 415)


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", COMPLETIONS, {"POST"}),
        ("OPTIONS", COMPLETIONS, {"POST"}),
        ("DELETE", "/v1/models", {"GET", "HEAD"}),
        ("GET", "/enginewire/abort", {"POST"}),
    ],
)
async def test_a_wrong_method_is_told_the_right_one(
    http: httpx2.AsyncClient, method: str, path: str, allowed: set[str]
) -> None:
    answer = await http.request(method, path)
    assert answer.status_code == 405
    assert set(answer.headers["allow"].split(", ")) == allowed
    assert answer.json()["error"]["code"] == "wrong_method"


async def test_below_a_path_of_a_proxy_every_route_is_found(text_backend: TextBackend) -> None:
    async with (
        serving_http(text_backend, root_path="/llm/v2") as face,
        httpx2.AsyncClient(base_url=face.address, timeout=PATIENCE_SECONDS, follow_redirects=True) as client,
    ):
        for path in ("", "/", "/v1/models", "/v1/models/mocker", "/enginewire/about", "/health"):
            if path:
                assert (await client.get(path)).status_code == 200
            assert (await client.get(f"/llm/v2{path}")).status_code == 200
        for path in (COMPLETIONS, f"/llm/v2{COMPLETIONS}"):
            answer = await client.post(path, json={"prompt": "ok"})
            assert answer.json()["choices"][0]["text"] == "ok"
        for path in ("/llm", "/llm/v2x/health", "/llm/v2/llm/v2/health"):
            assert (await client.get(path)).status_code == 404


async def test_the_page_finds_its_files_below_a_path_of_a_proxy(text_backend: TextBackend) -> None:
    async with (
        serving_http(text_backend, root_path="/llm") as face,
        httpx2.AsyncClient(base_url=face.address, timeout=PATIENCE_SECONDS, follow_redirects=True) as client,
    ):
        page = await client.get("/llm")
        assert page.url.path == "/llm/"
        linked = re.findall(r'(?:href|src)="([^"#:]+)"', page.text)
        assert len(linked) > 4
        for each in linked:
            assert (await client.get(page.url.join(each))).status_code == 200
        assert not re.search(r'[(\s"]/(?:enginewire|page)/', "".join(await scripts(client, page, linked)))


async def scripts(client: httpx2.AsyncClient, page: httpx2.Response, linked: list[str]) -> list[str]:
    """The page's scripts, those that others import included."""
    found = {each: "" for each in linked if each.endswith(".js")}
    while missing := [each for each, text in found.items() if not text]:
        for each in missing:
            found[each] = (await client.get(page.url.join(each))).text
            imported = re.findall(r'from "(\.[^"]+)"', found[each])
            found |= {normpath(f"{dirname(each)}/{name}"): "" for name in imported} | found
    assert len(found) > 10
    return list(found.values())


async def test_names_of_the_backend_stand_in_front_of_the_engines(start_backend: StartBackend) -> None:
    backend, _ = await start_backend(served_model_name=("engine-name", "alias"))
    async with sdk(backend, served_model_name=("first", "second")) as client:
        assert [each.id for each in (await client.models.list()).data] == ["first", "second"]
        for name in ("first", "second"):
            answer = await client.completions.create(model=name, prompt="ab")
            assert (answer.model, answer.choices[0].text) == ("first", "ab")
            response = await client.responses.create(model=name, input="ab")
            assert response.model == "first"
        for name in ("engine-name", "alias", "mocker"):
            with pytest.raises(NotFoundError) as refusal:
                await client.completions.create(model=name, prompt="ab")
            assert refusal.value.param == "model"


async def test_a_stream_ends_with_done_and_has_no_usage_unasked(http: httpx2.AsyncClient) -> None:
    answer = await http.post(COMPLETIONS, json={"prompt": "abc", "stream": True})
    events = answer.text.removesuffix("\n\n").split("\n\n")
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert events[-1] == "data: [DONE]"
    assert all(event.startswith("data: {") for event in events[:-1])
    assert "usage" not in answer.text


async def test_an_unexpected_failure_tells_nothing_about_itself(
    text_backend: TextBackend, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object, **__: object) -> AsyncIterator[object]:
        raise KeyError("secret prompt")
        yield

    monkeypatch.setattr(text_backend, "generate", broken)
    async with serving_http(text_backend) as face, httpx2.AsyncClient(base_url=face.address) as client:
        answer = await client.post(COMPLETIONS, json={"prompt": "x"})
    assert answer.status_code == 500
    message = answer.json()["error"]["message"]
    assert "secret" not in answer.text
    assert message.removeprefix("internal error ") in caplog.text


def test_every_reason_has_a_status() -> None:
    assert set(STATUS_OF_REASON) == set(pb.ErrorReason.values()) - {pb.ERROR_REASON_UNSPECIFIED}


async def test_an_address_in_use_is_named(text_backend: TextBackend) -> None:
    async with serving_http(text_backend) as face:
        port = int(face.address.rpartition(":")[2])
        with pytest.raises(AddressError, match=f"127.0.0.1:{port}"):
            async with http_face(text_backend, ServeOptions(http_port=port)):
                pass


async def test_a_drain_lets_answers_finish(start_backend: StartBackend) -> None:
    backend, _ = await start_backend(mocker_itl_ms=10.0)
    async with (
        serving_http(backend) as face,
        AsyncOpenAI(base_url=f"{face.address}/v1", api_key="none", max_retries=0) as client,
    ):
        stream = await client.completions.create(model="mocker", prompt="0123456789", stream=True)
        texts = [(await anext(aiter(stream))).choices[0].text]
        draining = asyncio.create_task(face.drain(10))
        async for chunk in stream:
            texts += [choice.text for choice in chunk.choices]
        await draining
        with pytest.raises(APIError):
            await client.completions.create(model="mocker", prompt="x")
    assert "".join(texts) == "0123456789"


async def test_a_drain_that_takes_too_long_tells_the_callers(start_backend: StartBackend) -> None:
    backend, serving = await start_backend(mocker_itl_ms=10.0)
    async with (
        serving_http(backend) as face,
        AsyncOpenAI(base_url=f"{face.address}/v1", api_key="none", max_retries=0) as client,
    ):
        stream = await client.completions.create(
            model="mocker", prompt="x", max_tokens=4000, stream=True, extra_body={"ignore_eos": True}
        )
        await anext(aiter(stream))
        await face.drain(0.1)
        with pytest.raises(APIError) as refusal:
            async for _ in stream:
                pass
        assert refusal.value.code == "draining"
        await serving.until_idle()


@pytest.mark.parametrize(("timeout", "milliseconds"), [(7.5, 7500), (1e12, 2**31 - 1)])
async def test_who_vanishes_without_a_word_is_asked_for_by_the_kernel(
    text_backend: TextBackend, timeout: float, milliseconds: int
) -> None:
    async with serving_http(text_backend, slow_consumer_timeout=timeout) as face:
        _, writer = await asyncio.open_connection(*face.address.removeprefix("http://").split(":"))
        connections = face._server.server_state.connections
        await until_true(lambda: bool(connections))
        accepted = next(iter(connections)).transport.get_extra_info("socket")
        assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == milliseconds
        writer.close()


async def test_an_answer_that_ends_with_the_event_loop_is_no_error_of_ours(
    http: httpx2.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    """uvicorn writes down whatever leaves an application."""
    asking = asyncio.create_task(http.post(COMPLETIONS, json={"prompt": "x" * 2000, "ignore_eos": True}))
    await until_true(lambda: any(_is_of_uvicorn(task) for task in asyncio.all_tasks()))
    # As the loop does it at its end.
    for task in filter(_is_of_uvicorn, asyncio.all_tasks()):
        task.cancel()
    assert (await asking).status_code == 500
    assert caplog.records == []


def _is_of_uvicorn(task: asyncio.Task[object]) -> bool:
    return getattr(task.get_coro(), "__name__", "") == "run_asgi"
