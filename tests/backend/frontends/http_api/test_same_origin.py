"""Which pages and which names may use the HTTP face: one rule for every route."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx2
import pytest

from enginewire.backend.frontends.text_backend import TextBackend
from tests.backend.frontends.http_api.serving import serving_http
from tests.patience import PATIENCE_SECONDS

GETS = ("/", "/health", "/version", "/metrics", "/v1/models", "/v1/models/mocker", "/enginewire/status")
POSTS = ("/v1/completions", "/v1/chat/completions", "/enginewire/generate", "/tokenize")
OTHER_POSTS = (
    "/detokenize",
    "/v1/embeddings",
    "/v1/responses",
    "/v1/load_lora_adapter",
    "/v1/unload_lora_adapter",
)
BODY = {"prompt": "x", "max_tokens": 1}
CHAT = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
CHAT_PAGE = "https://chat.example.org"


@pytest.fixture
async def http(text_backend: TextBackend) -> AsyncIterator[httpx2.AsyncClient]:
    async with (
        serving_http(text_backend) as face,
        httpx2.AsyncClient(base_url=face.address, timeout=PATIENCE_SECONDS) as client,
    ):
        yield client


async def statuses(client: httpx2.AsyncClient, headers: dict[str, str]) -> set[int]:
    """Of every route."""
    answers = [await client.get(path, headers=headers) for path in GETS]
    answers += [
        await client.post(path, json=CHAT if "chat" in path else BODY, headers=headers) for path in POSTS
    ]
    answers.append(await client.get("/no/such/route", headers=headers))
    return {answer.status_code for answer in answers}


@pytest.mark.parametrize(
    ("headers", "is_let_in"),
    [
        ({}, True),
        ({"host": "localhost:1"}, True),
        ({"host": "LOCALHOST.:1"}, True),
        ({"host": "[::1]:1"}, True),
        # The probe of a cluster asks an address, which no page can rebind.
        ({"host": "10.1.2.3:8000"}, True),
        ({"host": "evil.example"}, False),
        ({"host": "127.0.0.1.evil.example:8000"}, False),
        ({"host": "localhost.evil.example"}, False),
        ({"host": "[::1"}, False),
        ({"host": ""}, False),
        ({"sec-fetch-site": "same-origin"}, True),
        ({"sec-fetch-site": "none"}, True),
        ({"sec-fetch-site": "same-site"}, False),
        ({"sec-fetch-site": "cross-site"}, False),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors", "sec-fetch-dest": "image"}, False),
        ({"host": "localhost:1", "origin": "http://localhost:1"}, True),
        ({"host": "localhost:1", "origin": "http://localhost:2"}, False),
        ({"origin": "null"}, False),
    ],
)
async def test_one_rule_holds_for_every_route(
    http: httpx2.AsyncClient, headers: dict[str, str], is_let_in: bool
) -> None:
    assert await statuses(http, headers) == ({200, 404} if is_let_in else {403})


async def test_a_link_from_another_page_opens_ours_but_a_form_there_sends_nothing(
    http: httpx2.AsyncClient,
) -> None:
    link = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    opened = await http.get("/", headers=link)
    assert (opened.status_code, opened.headers["content-type"][:9]) == (200, "text/html")
    assert (await http.post("/v1/completions", json=BODY, headers=link)).status_code == 403
    assert (await http.get("/", headers={**link, "host": "evil.example"})).status_code == 403


async def test_a_refusal_names_the_option(http: httpx2.AsyncClient) -> None:
    answer = await http.get("/v1/models", headers={"host": "evil.example"})
    assert "--allowed-hosts" in answer.json()["error"]["message"]
    answer = await http.get("/v1/models", headers={"origin": "http://evil.example"})
    assert "--allowed-origins" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("allowed", "let_in", "kept_out"),
    [
        (("llm.example.org",), ["llm.example.org:443", "localhost"], ["example.org", "x.llm.example.org"]),
        (("*.example.org",), ["a.example.org", "a.b.example.org:1"], ["example.org", "evilexample.org"]),
        (("*",), ["anything"], []),
    ],
)
async def test_names_can_be_allowed(
    text_backend: TextBackend, allowed: tuple[str, ...], let_in: list[str], kept_out: list[str]
) -> None:
    async with (
        serving_http(text_backend, allowed_hosts=allowed) as face,
        httpx2.AsyncClient(base_url=face.address) as client,
    ):
        for host in let_in:
            assert (await client.get("/health", headers={"host": host})).status_code == 200
        for host in kept_out:
            assert (await client.get("/health", headers={"host": host})).status_code == 403


@pytest.mark.parametrize(("allowed", "status"), [((), 200), (("gpu8.example",), 403)])
async def test_beyond_loopback_any_name_is_let_in_unless_some_are_listed(
    text_backend: TextBackend, allowed: tuple[str, ...], status: int
) -> None:
    async with (
        serving_http(text_backend, http_host="0.0.0.0", allow_insecure=True, allowed_hosts=allowed) as face,
        httpx2.AsyncClient(base_url=face.address) as client,
    ):
        answer = await client.get("/v1/models", headers={"host": "gpu7.example:8000"})
        assert answer.status_code == status


async def test_pages_of_allowed_origins_may_ask_and_read(text_backend: TextBackend) -> None:
    page = {"origin": CHAT_PAGE, "sec-fetch-site": "cross-site"}
    asks = {"access-control-request-method": "POST", "access-control-request-headers": "content-type"}
    async with (
        serving_http(text_backend, allowed_origins=(CHAT_PAGE,)) as face,
        httpx2.AsyncClient(base_url=face.address) as client,
    ):
        preflights = [await client.options(path, headers={**page, **asks}) for path in POSTS + OTHER_POSTS]
        answer = await client.post("/v1/completions", json=BODY, headers=page)
        other = {**page, "origin": "https://evil.example"}
        refused = await client.post("/v1/completions", json=BODY, headers=other)
    assert {preflight.status_code for preflight in preflights} == {answer.status_code} == {200}
    assert {each.headers["access-control-allow-origin"] for each in preflights} == {CHAT_PAGE}
    assert answer.headers["access-control-allow-origin"] == CHAT_PAGE
    assert refused.status_code == 403
    assert "access-control-allow-origin" not in refused.headers


async def test_without_allowed_origins_no_page_is_told_that_it_may(http: httpx2.AsyncClient) -> None:
    answer = await http.post("/v1/completions", json=BODY)
    assert not [name for name in answer.headers if name.startswith("access-control")]
