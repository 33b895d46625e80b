"""Limits of a caller over HTTP, in the status, headers and words that clients of OpenAI read."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx2
import openai
import pytest

from enginewire.access.roles import Role
from tests.backend.frontends.conftest import StartBackend
from tests.backend.frontends.http_api.serving import serving_http
from tests.keys import KEYS, bearing, line_of
from tests.patience import PATIENCE_SECONDS

OTHER = "canary-other-infer-6620a1"


async def test_a_caller_sees_what_it_has_left_and_when_to_come_again(
    start_backend: StartBackend, tmp_path: Path
) -> None:
    backend, _ = await start_backend(mocker_itl_ms=1)
    file = tmp_path / "callers"
    limited = line_of(KEYS[Role.INFER], Role.INFER, "name=chat rpm_limit=3 tpm_limit=100")
    file.write_text(limited + line_of(OTHER, Role.INFER))
    asked = {"prompt": "hello", "max_tokens": 4, "ignore_eos": True, "n": 2}
    async with (
        serving_http(backend, api_key_file=file) as face,
        httpx2.AsyncClient(base_url=face.address, timeout=PATIENCE_SECONDS) as client,
    ):
        answer = await client.post("/v1/completions", json=asked, headers=bearing(KEYS[Role.INFER]))
        assert answer.status_code == 200
        assert answer.headers["x-ratelimit-limit-requests"] == "3"
        assert answer.headers["x-ratelimit-remaining-requests"] == "1", "two choices are two requests"
        assert answer.headers["x-ratelimit-limit-tokens"] == "100"
        assert int(answer.headers["x-ratelimit-remaining-tokens"]) <= 95 - 8 + 1
        assert answer.headers["x-ratelimit-reset-requests"].endswith("s")
        answer = await client.post("/v1/completions", json=asked, headers=bearing(KEYS[Role.INFER]))
        assert answer.status_code == 429
        assert int(answer.headers["retry-after"]) <= 20
        assert answer.headers["x-ratelimit-remaining-requests"] == "1"
        assert answer.json()["error"]["code"] == "rate_limit_exceeded"
        assert answer.json()["error"]["message"].startswith("rpm_limit: ")
        answer = await client.post("/v1/completions", json=asked, headers=bearing(OTHER))
        assert answer.status_code == 200
        assert not [name for name in answer.headers if name.startswith("x-ratelimit")]
        base_url, key = f"{face.address}/v1", KEYS[Role.INFER]
        async with openai.AsyncOpenAI(base_url=base_url, api_key=key, max_retries=0) as sdk:
            with pytest.raises(openai.RateLimitError):
                await sdk.completions.create(model="", prompt="x", max_tokens=1, n=2)


async def test_what_a_caller_left_is_given_back(start_backend: StartBackend, tmp_path: Path) -> None:
    backend, _ = await start_backend(mocker_itl_ms=5)
    file = tmp_path / "callers"
    file.write_text(line_of(OTHER, Role.INFER, "max_parallel_requests=1"))
    long = {"prompt": "x", "max_tokens": 4000, "ignore_eos": True, "stream": True}
    async with (
        serving_http(backend, api_key_file=file) as face,
        httpx2.AsyncClient(base_url=face.address, timeout=PATIENCE_SECONDS, headers=bearing(OTHER)) as client,
    ):
        for _ in range(2):
            async with client.stream("POST", "/v1/completions", json=long) as answer:
                assert answer.status_code == 200
                refused = await client.post("/v1/completions", json={**long, "stream": False})
                assert refused.status_code == 429
            while backend.backend.activity.live:  # noqa: ASYNC110  # a request has no event for its end
                await asyncio.sleep(0)
