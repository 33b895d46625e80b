"""API keys over HTTP: which role a route needs, how a key comes, what those are told who have none."""

from __future__ import annotations

import logging
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import openai
import pytest

from enginewire.access.roles import Role
from enginewire.backend.frontends.http_api.app import ROLE_OF_ROUTE
from enginewire.backend.frontends.text_backend import TextBackend
from tests.backend.frontends.conftest import StartBackend
from tests.backend.frontends.http_api.serving import serving_http
from tests.certificates import Authority
from tests.keys import ALL_KEYS, KEYS, UNKNOWN_KEY, bearing
from tests.patience import PATIENCE_SECONDS

OTHER = "canary-other-infer-6620a1"
LONG = {"prompt": "x", "max_tokens": 4000, "ignore_eos": True, "stream": True}


READ, INFER, ADMIN = (bearing(KEYS[role]) for role in Role)


@pytest.fixture
async def http(start_backend: StartBackend) -> AsyncIterator[httpx2.AsyncClient]:
    backend, _ = await start_backend(mocker_itl_ms=5)
    given = {"api_key": (*ALL_KEYS, OTHER), "allowed_origins": ("https://chat.example.org",)}
    async with (
        serving_http(backend, **given) as face,
        httpx2.AsyncClient(base_url=face.address, timeout=PATIENCE_SECONDS) as client,
    ):
        yield client


async def status_of(http: httpx2.AsyncClient, path: str, headers: tuple[tuple[str, str], ...]) -> int:
    """What a caller is told by a route whatever its method; a body is not sent."""
    for method in ("GET", "POST"):
        async with http.stream(method, path.replace("{name:path}", "x"), headers=headers) as answer:
            if answer.status_code != 405:
                return answer.status_code
    raise AssertionError(path)


async def test_a_route_is_used_with_its_role_and_with_none_below(http) -> None:
    for path, least in ROLE_OF_ROUTE.items():
        for headers in (bearing(), bearing(UNKNOWN_KEY)):
            assert (await status_of(http, path, headers) == 401) is (least is not None), path
        for role in Role:
            told = await status_of(http, path, bearing(KEYS[role]))
            assert (told == 403) is (least is not None and role < least), (path, role)
            assert told != 401, (path, role)


async def test_a_key_is_refused_in_the_words_of_either_api(http) -> None:
    answer = await http.post("/v1/chat/completions", json={"messages": []}, headers=bearing(UNKNOWN_KEY))
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.json()["error"] == {
        "message": "incorrect API key",
        "type": "invalid_request_error",
        "param": None,
        "code": "invalid_api_key",
    }
    answer = await http.post("/v1/messages", json={}, headers={"x-api-key": UNKNOWN_KEY})
    assert answer.json() == {
        "type": "error",
        "error": {"type": "authentication_error", "message": "incorrect API key"},
    }
    answer = await http.post("/v1/messages", json={}, headers={"x-api-key": KEYS[Role.READ]})
    assert answer.json()["error"]["type"] == "permission_error"


async def test_both_sdks_bring_it_as_they_do(http) -> None:
    import anthropic  # takes seconds, which no other test here needs

    url = str(http.base_url)
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=KEYS[Role.INFER], max_retries=0) as sdk:
        done = await sdk.completions.create(model="mocker", prompt="x", max_tokens=2)
        assert done.usage.completion_tokens == 2
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=UNKNOWN_KEY, max_retries=0) as sdk:
        with pytest.raises(openai.AuthenticationError):
            await sdk.models.list()
    asked = {"model": "mocker", "max_tokens": 2, "messages": [{"role": "user", "content": "x"}]}
    for given in ({"api_key": KEYS[Role.INFER]}, {"auth_token": KEYS[Role.INFER]}):
        async with anthropic.AsyncAnthropic(base_url=url, max_retries=0, **given) as sdk:
            assert (await sdk.messages.create(**asked)).usage.output_tokens == 2
    async with anthropic.AsyncAnthropic(base_url=url, api_key=UNKNOWN_KEY, max_retries=0) as sdk:
        with pytest.raises(anthropic.AuthenticationError):
            await sdk.messages.create(**asked)


async def test_two_keys_are_none(http) -> None:
    both = [("authorization", f"Bearer {KEYS[Role.READ]}"), ("x-api-key", KEYS[Role.ADMIN])]
    assert (await http.get("/v1/models", headers=both)).status_code == 401
    same = [("authorization", f"Bearer {KEYS[Role.READ]}"), ("x-api-key", KEYS[Role.READ])]
    assert (await http.get("/v1/models", headers=same)).status_code == 200
    assert (await http.get("/v1/models", headers={"authorization": KEYS[Role.READ]})).status_code == 401


async def test_an_allowed_page_may_ask_with_a_key_and_reads_why_it_is_refused(http) -> None:
    page = {"origin": "https://chat.example.org"}
    asking = {
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type",
    }
    before = await http.options("/v1/completions", headers={**page, **asking})
    assert before.status_code == 200
    refused = await http.get("/v1/models", headers=page)
    assert refused.status_code == 401
    assert refused.headers["access-control-allow-origin"] in ("*", page["origin"])


async def test_a_request_is_ended_by_its_owner_or_an_admin(http) -> None:
    for ends, told in ((bearing(OTHER), 404), (INFER, 200), (ADMIN, 200)):
        async with http.stream("POST", "/v1/completions", json=LONG, headers=INFER) as answer:
            lines = answer.aiter_lines()
            await anext(lines)
            [live] = (await http.get("/enginewire/status", headers=READ)).json()["requests"]
            asked = {"request_id": live["id"]}
            ended = await http.post("/enginewire/abort", json=asked, headers=ends)
            assert ended.status_code == told
            if told == 404:
                unknown = await http.post("/enginewire/abort", json={"request_id": "none"}, headers=ends)
                assert ended.json() == unknown.json()


async def test_without_keys_who_has_another_certificate_does_not_end_it(
    start_backend: StartBackend, tmp_path: Path
) -> None:
    backend, _ = await start_backend(mocker_itl_ms=5)
    authority = Authority(tmp_path)
    mine = authority.signed("mine")
    files = {"ssl_certfile": mine.certificate, "ssl_keyfile": mine.key, "ssl_ca_certs": authority.file}

    def showing(name: str) -> ssl.SSLContext:
        shown = authority.signed(name, f"{name}.example.org")
        context = ssl.create_default_context(cafile=authority.file)
        context.load_cert_chain(shown.certificate, shown.key)
        return context

    async with (
        serving_http(backend, **files) as face,
        httpx2.AsyncClient(base_url=face.address, verify=showing("owner"), timeout=PATIENCE_SECONDS) as owner,
        httpx2.AsyncClient(base_url=face.address, verify=showing("other"), timeout=PATIENCE_SECONDS) as other,
        owner.stream("POST", "/v1/completions", json=LONG) as answer,
    ):
        lines = answer.aiter_lines()
        await anext(lines)
        [live] = (await other.get("/enginewire/status")).json()["requests"]
        asked = {"request_id": live["id"]}
        assert (await other.post("/enginewire/abort", json=asked)).status_code == 404
        assert (await owner.post("/enginewire/abort", json=asked)).status_code == 200


async def test_without_keys_nothing_is_asked(text_backend: TextBackend) -> None:
    async with (
        serving_http(text_backend) as face,
        httpx2.AsyncClient(base_url=face.address, timeout=PATIENCE_SECONDS) as http,
    ):
        for path in ROLE_OF_ROUTE:
            assert await status_of(http, path, {}) not in (401, 403)


async def test_no_key_gets_into_a_log_or_an_answer(http, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    said = []
    for headers in (INFER, ADMIN, bearing(UNKNOWN_KEY), {"x-api-key": UNKNOWN_KEY}):
        for path in ("/v1/models", "/metrics", "/enginewire/status", "/nowhere"):
            answer = await http.get(path, headers=headers)
            said.append(answer.text + str(answer.headers))
    logged = [record.getMessage() for record in caplog.records if record.name.startswith("enginewire")]
    assert "canary" not in "".join([*said, *logged])
