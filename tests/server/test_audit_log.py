"""What the audit log of an engine server says, and what neither it nor a metric ever does."""

from __future__ import annotations

import json
from pathlib import Path

import grpc
import httpx2
import pytest

from enginewire import v1 as pb
from enginewire.access.roles import Role
from tests.keys import KEYS, UNKNOWN_KEY, bearing, line_of
from tests.server.serving import Serving, ask, collect, submit

READ, INFER, ADMIN = (bearing(KEYS[role]) for role in Role)
SECRET = b"canary prompt"


@pytest.fixture(autouse=True)
def idle_as_admin(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the fixture asks of every server at the end, it asks with a key."""

    async def load(serving: Serving) -> pb.Load:
        return (await serving.discovery.GetLoad(pb.GetLoadRequest(), metadata=READ)).load

    monkeypatch.setattr(Serving, "load", load)


async def test_every_call_has_one_line_and_metrics_say_who_used_what(engine_server, tmp_path: Path) -> None:
    file, log = tmp_path / "callers", tmp_path / "audit"
    named = line_of(KEYS[Role.INFER], Role.INFER, "name=chat max_parallel_requests=2")
    file.write_text(named + line_of(KEYS[Role.ADMIN], Role.ADMIN) + line_of(KEYS[Role.READ], Role.READ))
    serving = await engine_server(api_key_file=file, audit_log=str(log), metrics_port=0)
    await serving.generate(ask("g1", prompt=SECRET, max_tokens=3), metadata=INFER)
    frames = [submit(1, ask("m1", prompt=SECRET, max_tokens=2))]
    await collect(serving.engine.GenerateMultiplexed(iter(frames), metadata=INFER))
    three = ask("wide", sampling_options=pb.SamplingOptions(n=3))
    assert (await serving.generate(three, metadata=INFER)).failure is not None
    await serving.engine.Abort(pb.AbortRequest(request_ids=["none"]), metadata=ADMIN)
    for metadata in (bearing(UNKNOWN_KEY), READ):
        with pytest.raises(grpc.aio.AioRpcError):
            await serving.engine.Abort(pb.AbortRequest(all=True), metadata=metadata)
    async with httpx2.AsyncClient() as client:
        page = await client.get(
            serving.server.metrics.url, headers={"authorization": f"Bearer {KEYS[Role.READ]}"}
        )
    serving.server.audit.close()
    text = log.read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    seen = [(line["who"], line["method"], line["outcome"]) for line in lines]
    assert seen[:3] == [
        ("chat", "generate", "OK"),
        ("chat", "generate", "OK"),
        ("chat", "request", "QUEUE_FULL"),
    ]
    abort = "enginewire.v1.EngineService/Abort"
    assert [(method, outcome) for _, method, outcome in seen[3:6]] == [
        (abort, "OK"),
        (abort, "UNAUTHENTICATED"),
        (abort, "PERMISSION_DENIED"),
    ]
    assert lines[0]["request_id"] == "g1"
    assert (lines[0]["prompt_tokens"], lines[0]["completion_tokens"]) == (len(SECRET), 3)
    for shown in (text, page.text):
        assert "canary" not in shown
        assert not [key for key in KEYS.values() if key in shown]
    assert 'enginewire:caller_requests_total{caller="chat"} 2.0' in page.text
    assert 'enginewire:caller_tokens_total{caller="chat",kind="generation"} 5.0' in page.text
    for reason, number in (("unauthenticated", 1), ("permission_denied", 1), ("limit", 1)):
        assert f'enginewire:refused_calls_total{{reason="{reason}"}} {number}.0' in page.text
