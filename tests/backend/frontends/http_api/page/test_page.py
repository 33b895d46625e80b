from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator

import httpx2
import orjson
import pytest
from prometheus_client.parser import text_string_to_metric_families

from enginewire import v1 as pb
from enginewire.backend.backend import Backend
from enginewire.backend.engines.connection.client import EngineClient
from enginewire.backend.engines.endpoints import Endpoints
from enginewire.backend.frontends.text_backend import TextBackend
from tests.backend.frontends.conftest import StartBackend
from tests.backend.frontends.http_api.serving import serving_http
from tests.patience import PATIENCE_SECONDS

GENERATE = "/enginewire/generate"
LONG = {"prompt": "x" * 100, "max_tokens": 4000, "ignore_eos": True}
JSON = "application/json"


@pytest.fixture
async def watched(start_backend: StartBackend) -> AsyncIterator[TextBackend]:
    """A backend that hears of its engine's load, as every one that serves."""
    backend, serving = await start_backend(mocker_itl_ms=10)
    async with Endpoints([EngineClient(serving.server.target)]) as engines:
        await engines.wait_ready(10)
        yield TextBackend(Backend(engines, backend.backend.vocabulary), backend.tokenizer)


@pytest.fixture
async def http(watched: TextBackend) -> AsyncIterator[httpx2.AsyncClient]:
    async with (
        serving_http(watched) as face,
        httpx2.AsyncClient(base_url=face.address, timeout=PATIENCE_SECONDS) as client,
    ):
        yield client


async def status_until(http: httpx2.AsyncClient, *, requests: int, blocks: bool) -> dict[str, object]:
    """The state, once it is about so many requests and an engine that holds blocks for them, or none."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            status = (await http.get("/enginewire/status")).json()
            engine = status["engines"][0]
            if status["num_requests"] == requests and (engine["kv_blocks_used"] > 0) is blocks:
                return status
            await asyncio.sleep(0.02)


async def metrics_of(http: httpx2.AsyncClient) -> dict[tuple[str, ...], float]:
    """Value by name and the values of its labels, without the model's."""
    page = (await http.get("/metrics")).text
    return {
        (sample.name, *(value for name, value in sample.labels.items() if name != "model_name")): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


async def test_a_live_request_is_in_the_state_and_an_abort_ends_it(http: httpx2.AsyncClient) -> None:
    asked = asyncio.create_task(http.post("/v1/completions", json=LONG))
    status = await status_until(http, requests=1, blocks=True)
    row = status["requests"][0]
    assert row["id"].startswith("cmpl-")
    assert (row["prompt_tokens"], row["max_tokens"], row["choices"], row["attempts"]) == (100, 4000, 1, 1)
    aborted = await http.post("/enginewire/abort", json={"request_id": row["id"]})
    assert aborted.json() == {"aborted": 1}
    answer = await asked
    assert answer.status_code == 499
    assert answer.json()["error"]["code"] == "cancelled"
    await status_until(http, requests=0, blocks=False)
    metrics = await metrics_of(http)
    assert metrics["vllm:request_success_total", "abort"] == 1
    assert metrics["enginewire:request_failures_total", "cancelled"] == 1


async def test_what_has_ended_stays_in_the_state_for_a_while(http: httpx2.AsyncClient) -> None:
    await http.post("/v1/completions", json={"prompt": ["abcd", "efg"], "max_tokens": 3, "n": 2, "seed": 1})
    await http.post("/v1/chat/completions", json={"messages": [], "top_p": 7})
    await http.post("/v1/completions", json={"prompt": "x", "top_p": 7})
    ended = (await http.get("/enginewire/status")).json()["ended"]
    assert [(row["outcome"], row["face"]) for row in ended] == [
        ("invalid_request", "HTTP"),
        ("length", "HTTP"),
        ("length", "HTTP"),
    ]
    assert sorted((row["prompt_tokens"], row["tokens"], row["choices"]) for row in ended[1:]) == [
        (3, 6, 2),
        (4, 6, 2),
    ]
    assert ended[0]["ttft"] is None
    assert all(0 < row["ttft"] <= row["seconds"] for row in ended[1:])


async def test_an_engine_that_nobody_watches_is_asked_what_it_bears(start_backend: StartBackend) -> None:
    backend, serving = await start_backend(mocker_itl_ms=10)
    assert backend.backend.engines.all[0].load == pb.Load(), "it is watched"
    async with (
        serving_http(backend) as face,
        httpx2.AsyncClient(base_url=face.address, timeout=PATIENCE_SECONDS) as http,
    ):
        asked = asyncio.create_task(http.post("/v1/completions", json=LONG))
        status = await status_until(http, requests=1, blocks=True)
        assert (status["engines"][0]["state"], status["engines"][0]["running"]) == ("ready", 1)
        asked.cancel()
    await serving.until_idle()


async def test_no_load_tells_of_fewer_requests_than_are_answered(http: httpx2.AsyncClient) -> None:
    body = {"prompt": "x" * 20, "max_tokens": 20, "ignore_eos": True}
    asked = [asyncio.create_task(http.post("/v1/completions", json=body)) for _ in range(20)]
    most = 0
    while not all(task.done() for task in asked):
        status = (await http.get("/enginewire/status")).json()
        engine, phases = status["engines"][0], [row["phase"] for row in status["requests"]]
        assert engine["running"] + engine["waiting"] >= phases.count("decode")
        most = max(most, phases.count("decode"))
    assert most > 5, "nothing was seen"


@pytest.mark.parametrize("body", [{}, {"request_id": ""}, {"request_id": 5}, {"request_id": "x" * 513}])
async def test_an_abort_without_an_id_is_refused(http: httpx2.AsyncClient, body: object) -> None:
    answer = await http.post("/enginewire/abort", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "request_id"


async def test_an_abort_of_nothing_is_not_found(http: httpx2.AsyncClient) -> None:
    answer = await http.post("/enginewire/abort", json={"request_id": "another"})
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "request_not_found"


async def test_tokens_come_with_ids_bytes_probabilities_and_withheld_text(http: httpx2.AsyncClient) -> None:
    body = {"prompt": "é stop", "stream": True, "logprobs": 2, "stop": ["stopped"], "max_tokens": 7}
    events = (await http.post(GENERATE, json=body)).text.split("\n\n")
    assert events[-2] == "data: [DONE]"
    choices = [orjson.loads(event.removeprefix("data: "))["choices"][0] for event in events[:-2]]
    tokens = [token for choice in choices for token in choice["tokens"]]
    assert bytes.fromhex("".join(token["bytes"] for token in tokens)).decode() == "é stop"
    assert [token["id"] for token in tokens] == list("é stop".encode())
    assert all(len(token["top"]) == 2 and token["logprob"] < 0 for token in tokens)
    assert {choice["withheld"] for choice in choices} > {"", "s"}
    assert "".join(choice["text"] for choice in choices) == "é stop"
    assert choices[-1]["finish_reason"] == "length"


async def test_tokens_come_without_probabilities_when_nobody_asks(http: httpx2.AsyncClient) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "stop": ["i!"]}
    choice = (await http.post(GENERATE, json=body)).json()["choices"][0]
    assert choice["text"] == "user: hi\nassistant: "
    assert choice["tokens"][0] == {"id": ord("u"), "text": "u", "bytes": "75"}


async def test_events_tell_the_state_again_and_again_until_the_server_ends(watched: TextBackend) -> None:
    async with (
        serving_http(watched) as face,
        httpx2.AsyncClient(base_url=face.address) as client,
        client.stream("GET", "/enginewire/events") as events,
    ):
        assert events.headers["content-type"].startswith("text/event-stream")
        lines = events.aiter_lines()
        states = [await anext(lines) for _ in range(4)]
        assert [bool(line) for line in states] == [True, False] * 2
        assert orjson.loads(states[2].removeprefix("data: "))["engines"][0]["state"] == "ready"
        async with asyncio.timeout(PATIENCE_SECONDS):
            await face.drain(30)
            async for _ in lines:
                pass


async def test_what_does_not_change_is_told_once(http: httpx2.AsyncClient) -> None:
    about = (await http.get("/enginewire/about")).json()
    assert (about["model"], about["has_chat_template"]) == ("mocker", True)
    assert about["max_logprobs"] > 0


async def test_a_form_of_another_page_cannot_abort(http: httpx2.AsyncClient) -> None:
    assert (await http.post("/enginewire/abort", data={"request_id": "x"})).status_code == 415


async def test_the_page_and_its_files_come_under_one_policy(http: httpx2.AsyncClient) -> None:
    page = await http.get("/")
    assert page.headers["content-type"].startswith("text/html")
    assert not re.findall(r"<style|<script(?![^>]* src=)|\son\w+=|\sstyle=", page.text)
    names = re.findall(r'(?:href|src)="page/([^"]+)"', page.text)
    main = (await http.get("/page/main.js")).text
    names += re.findall(r'from "\./([^"]+)"', main)
    assert len(names) > 10
    for name in names:
        file = await http.get(f"/page/{name}")
        assert file.status_code == 200, name
        wanted = {"css": "text/css", "js": "text/javascript"}[name.rpartition(".")[2]]
        assert file.headers["content-type"].startswith(wanted)
        for header in ("content-security-policy", "x-content-type-options", "x-frame-options"):
            assert file.headers[header] == page.headers[header]
    policy = page.headers["content-security-policy"]
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy


@pytest.mark.parametrize("name", ["page.py", "..%2Fpage.py", "nothing.js", "", "%00"])
async def test_only_the_files_of_the_page_are_served(http: httpx2.AsyncClient, name: str) -> None:
    assert (await http.get(f"/page/{name}")).status_code == 404


async def test_metrics_count_what_was_asked_and_how_it_ended(http: httpx2.AsyncClient) -> None:
    await http.post("/v1/completions", json={"prompt": "abcd", "max_tokens": 3, "n": 2, "seed": 1})
    await http.post("/v1/completions", json={"prompt": "abcd", "max_tokens": 3, "top_p": 7})
    metrics = await metrics_of(http)
    assert metrics["vllm:prompt_tokens_total",] == 4
    assert metrics["vllm:generation_tokens_total",] == 6
    assert metrics["vllm:request_success_total", "length"] == 2
    assert metrics["vllm:request_success_total", "error"] == 1
    assert metrics["enginewire:request_failures_total", "invalid_request"] == 1
    assert metrics["vllm:time_to_first_token_seconds_count",] == 1
    assert metrics["vllm:inter_token_latency_seconds_count",] == 4
    assert metrics["vllm:e2e_request_latency_seconds_count",] == 1
    assert metrics["vllm:request_generation_tokens_bucket", "10.0"] == 1
    assert metrics["vllm:request_generation_tokens_bucket", "5.0"] == 0
    assert metrics["enginewire:engine_up", "0"] == 1
    assert metrics["enginewire:requests_live",] == 0
    assert metrics["enginewire:kv_blocks_total", "0"] > 0
    assert metrics["enginewire:engine_decode_differences_total", "text"] == 0
    assert metrics["enginewire:engine_decode_differences_total", "finish_reason"] == 0
    assert metrics["process_open_fds",] > 0


async def test_metrics_and_health_tell_that_the_engine_takes_nothing_more(
    start_backend: StartBackend,
) -> None:
    backend, serving = await start_backend()
    async with (
        Endpoints([EngineClient(serving.server.target)]) as engines,
        serving_http(TextBackend(Backend(engines, backend.backend.vocabulary), backend.tokenizer)) as face,
        httpx2.AsyncClient(base_url=face.address, timeout=PATIENCE_SECONDS) as http,
    ):
        await engines.wait_ready(10)
        async for _ in serving.engine.Drain(pb.DrainRequest()):
            pass
        async with asyncio.timeout(PATIENCE_SECONDS):
            while engines.all[0].load.state != pb.ENGINE_STATE_DRAINING:  # noqa: ASYNC110  # no event tells
                await asyncio.sleep(0.02)
        assert (await metrics_of(http))["enginewire:engine_up", "0"] == 0
        assert (await http.get("/health")).status_code == 503
        assert (await http.get("/enginewire/status")).json()["engines"][0]["state"] == "draining"


async def test_prompts_are_nowhere_in_state_or_metrics(http: httpx2.AsyncClient) -> None:
    asked = asyncio.create_task(http.post("/v1/completions", json={**LONG, "prompt": "SECRET" * 20}))
    status = await status_until(http, requests=1, blocks=True)
    assert "SECRET" not in str(status)
    assert "SECRET" not in (await http.get("/metrics")).text
    asked.cancel()


async def test_one_of_two_engines_is_enough_for_every_route(start_backend: StartBackend) -> None:
    backend, serving = await start_backend()
    clients = [EngineClient("unix:/nowhere/engine.sock"), EngineClient(serving.server.target)]
    async with Endpoints(clients) as engines:
        await engines.wait_ready(10)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while engines.all[0].is_usable or not engines.all[1].is_usable:  # noqa: ASYNC110  # no event tells
                await asyncio.sleep(0.02)
        text = TextBackend(Backend(engines, backend.backend.vocabulary), backend.tokenizer)
        async with (
            serving_http(text) as face,
            httpx2.AsyncClient(base_url=face.address, timeout=PATIENCE_SECONDS) as http,
        ):
            assert (await http.get("/enginewire/about")).json()["model"] == "mocker"
            assert (await http.get("/v1/models")).json()["data"][0]["id"] == "mocker"
            assert (await http.get("/health")).status_code == 200
            answer = await http.post("/v1/completions", json={"prompt": "abc"})
            assert (answer.status_code, answer.json()["model"]) == (200, "mocker")
            metrics = await metrics_of(http)
        assert (metrics["enginewire:engine_up", "0"], metrics["enginewire:engine_up", "1"]) == (0, 1)
