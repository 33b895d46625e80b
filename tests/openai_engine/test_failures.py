"""What becomes of requests, and of this server, when the one behind it does not do what it should."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import NoReturn

import pytest

from enginewire.access.target_key import TargetKey
from enginewire.server.engines.remote import watch
from enginewire.server.engines.remote.watch import Lost, NoUpstream
from enginewire.server.failures import (
    EngineDead,
    EngineError,
    EngineMistake,
    InvalidRequest,
    QueueFull,
    Stuck,
)
from tests.openai_engine.conftest import Started
from tests.openai_engine.recording import SCENARIOS, RecordedServer, answer_of, engine_at
from tests.patience import PATIENCE_SECONDS
from tests.server.serving import until_true

KEY = "sk-short"


@pytest.mark.parametrize(
    ("status", "failure"),
    [
        (400, InvalidRequest),
        (422, InvalidRequest),
        (429, QueueFull),
        (503, EngineDead),
        (401, EngineMistake),
        (500, EngineMistake),
        (307, EngineMistake),
    ],
)
async def test_refusals_become_failures_of_the_contract(
    started: Started, status: int, failure: type[EngineError]
):
    engine, server = await started("llama.cpp")
    server.status, server.headers = status, {"location": "http://127.0.0.1:1/"}
    server.error = {"error": {"message": "prompt: secret words", "type": "x"}}
    with pytest.raises(failure) as raised:
        await answer_of(engine, SCENARIOS["plain"])
    if failure is not EngineMistake:  # which is told to nobody but the log
        assert "secret" not in str(raised.value)
    assert (engine.load().running, engine.load().waiting) == (0, 0)


@pytest.mark.parametrize("kind", ["llama.cpp", "vllm"])
async def test_a_stream_that_breaks_is_a_lost_engine(started: Started, kind: str):
    engine, server = await started(kind)
    server.break_after = 2
    with pytest.raises(EngineDead):
        await answer_of(engine, SCENARIOS["plain"])
    assert not engine.is_dead  # it answers still


async def test_a_server_that_is_gone_takes_this_one_with_it(started: Started, monkeypatch):
    monkeypatch.setattr(watch, "EVERY_SECONDS", 0.05)
    engine, server = await started("llama.cpp")
    server.break_after, server.hang = 2, True
    answer = asyncio.create_task(answer_of(engine, SCENARIOS["plain"]))
    await until_true(lambda: engine.load().tokens_generated == 2)
    await server.end()
    with pytest.raises(EngineDead):
        await answer
    await until_true(lambda: engine.is_dead)
    assert engine.stalled_for() == float("inf")
    with pytest.raises(EngineDead):
        await answer_of(engine, SCENARIOS["plain"])


async def test_what_fails_with_the_engine_of_vllm_is_told_as_its_death(started: Started):
    engine, server = await started("vllm")
    server.status = 500  # as its requests get it, and /v1/models answers still
    server.error = {"error": {"message": "EngineCore encountered an issue.", "code": 500}}
    with pytest.raises(EngineMistake):
        await answer_of(engine, SCENARIOS["plain"])
    server.health = 503
    with pytest.raises(EngineDead):
        await answer_of(engine, SCENARIOS["plain"])
    assert engine.is_dead


async def test_a_server_like_vllm_need_not_tell_its_health(started: Started, monkeypatch):
    monkeypatch.setattr(watch, "EVERY_SECONDS", 0.05)
    engine, server = await started("vllm")
    server.health = 404
    await until_true(lambda: sum("/health" in head for head in server.heads) > 3)
    await answer_of(engine, SCENARIOS["plain"])
    assert not engine.is_dead


async def test_a_connection_that_is_closed_at_once_is_a_lost_one(started: Started, monkeypatch):
    engine, _ = await started("vllm")

    async def send(*_: object, **__: object) -> NoReturn:
        raise AttributeError("'NoneType' object has no attribute 'getpeername'")  # as anyio has it

    with monkeypatch.context() as patch:
        patch.setattr(engine._connection._client, "send", send)
        with pytest.raises(Lost):
            await engine._connection.get("/v1/models")


async def test_another_model_behind_the_same_address_is_another_engine(started: Started, monkeypatch):
    monkeypatch.setattr(watch, "EVERY_SECONDS", 0.05)
    engine, server = await started("llama.cpp")
    server._answers["/props null"]["answer"]["model_path"] = "other.gguf"
    await until_true(lambda: engine.is_dead)


async def test_what_a_server_refuses_is_worth_a_look_at_it(started: Started, monkeypatch):
    monkeypatch.setattr(watch, "EVERY_SECONDS", 1000.0)
    engine, server = await started("llama.cpp")
    server._answers["/props null"]["answer"]["model_path"] = "other.gguf"
    server.status = 404
    with pytest.raises(EngineError):
        await answer_of(engine, SCENARIOS["plain"])
    await until_true(lambda: engine.is_dead)


async def test_silence_ends_a_request_and_its_connection(started: Started, monkeypatch):
    monkeypatch.setattr(watch, "EVERY_SECONDS", 0.05)
    engine, server = await started("llama.cpp", silence_timeout=0.2)
    server.break_after, server.hang = 2, True
    with pytest.raises(Stuck):
        await answer_of(engine, SCENARIOS["plain"])
    await asyncio.wait_for(server.closed.wait(), PATIENCE_SECONDS)
    assert engine.load().running == 0


async def test_a_key_is_brought_and_shown_to_nobody(started: Started, tmp_path: Path, caplog):
    caplog.set_level(logging.DEBUG)
    file = tmp_path / "key"
    file.write_text(f"{KEY}\n")
    key = TargetKey("", file, "--upstream-api-key", of_others=True)
    engine, server = await started("vllm", api_key=key)
    await answer_of(engine, SCENARIOS["plain"])
    assert all(f"authorization: bearer {KEY}" in head.lower() for head in server.heads)
    assert KEY not in caplog.text


async def fails(engine, *words: str) -> None:
    with pytest.raises(NoUpstream) as raised:
        await engine.start(0)
    for word in words:
        assert word in str(raised.value)
    await engine.cleanup()


async def test_a_server_that_does_not_come_is_told_in_a_sentence():
    await fails(
        engine_at("http://127.0.0.1:9", start_timeout=0.2),
        "--upstream http://127.0.0.1:9: no server has answered within 0.2 s",
    )


async def test_what_cannot_be_served_is_told_in_a_sentence(started: Started):
    server = RecordedServer("vllm")
    url = await server.start()
    try:
        models = server._answers["/v1/models null"]["answer"]
        models["data"][0]["owned_by"] = "somebody"
        await fails(engine_at(url), "is of 'somebody'", "--openai-server")
        await fails(engine_at(url, server="llama.cpp"), "is no completions server", "404")
        models["data"][0]["owned_by"] = "vllm"
        no_folder = engine_at(url)
        no_folder._openai = type(no_folder._openai)(target=url)
        await fails(no_folder, "--model FOLDER")
    finally:
        await server.end()
