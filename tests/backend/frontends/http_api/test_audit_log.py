from __future__ import annotations

import json
from pathlib import Path

import httpx2

from enginewire.access.audit import AuditLog
from enginewire.access.roles import Role
from tests.backend.frontends.conftest import StartBackend
from tests.backend.frontends.http_api.serving import client_of
from tests.keys import KEYS, UNKNOWN_KEY, bearing, line_of

SECRET = "canary prompt"


async def test_each_call_and_each_request_has_a_line_without_its_text(
    start_backend: StartBackend, tmp_path: Path
) -> None:
    file, path = tmp_path / "callers", tmp_path / "audit"
    file.write_text(line_of(KEYS[Role.INFER], Role.INFER, "name=chat"))
    backend, _ = await start_backend(mocker_itl_ms=1)
    backend.backend.activity.audit = log = AuditLog(str(path))
    body = {"prompt": SECRET, "max_tokens": 4, "ignore_eos": True}
    async with client_of(backend, api_key_file=file) as http:

        async def post(key: str, **fields: object) -> httpx2.Response:
            return await http.post("/v1/completions", json=body | fields, headers=bearing(key))

        assert (await post(KEYS[Role.INFER])).status_code == 200
        assert (await post(KEYS[Role.INFER], max_tokens=0)).status_code == 400
        assert (await post(UNKNOWN_KEY)).status_code == 401
        assert (await http.get("/v1/models", headers=bearing(KEYS[Role.INFER]))).status_code == 200
    log.close()
    text = path.read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    assert sorted((line["who"], line["method"], line["outcome"]) for line in lines) == [
        ("anybody", "POST /v1/completions", "401"),
        ("chat", "GET /v1/models", "200"),
        ("chat", "POST /v1/completions", "200"),
        ("chat", "POST /v1/completions", "400"),
        ("chat", "generate over HTTP", "invalid_request"),
        ("chat", "generate over HTTP", "length"),
    ]
    assert all(line["seconds"] >= 0 for line in lines)
    for secret in (SECRET, *KEYS.values(), UNKNOWN_KEY):
        assert secret not in text
