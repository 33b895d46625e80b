"""Requests between a stand-in for Dynamo's runtime and real engines."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from enginewire import v1 as pb
from enginewire.backend.engines.connection.client import EngineClient
from enginewire.backend.frontends.dynamo.failures import EXCEPTION_NAMES
from enginewire.backend.frontends.dynamo.worker import Worker, request_id
from tests.backend.hostile import PROMPT, terminal, tokens
from tests.server.serving import until_true

EXCEPTIONS: dict[Any, type[Exception]] = {name: type(name, (Exception,), {}) for name in EXCEPTION_NAMES}
LONG = {"token_ids": PROMPT, "stop_conditions": {"max_tokens": 10_000, "ignore_eos": True}}
NAME = "5f0c-1"


class Context:
    """What the runtime says of a request."""

    def __init__(self, headers: Mapping[str, str] | None = None) -> None:
        self.stopped: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._headers = headers

    def id(self) -> str:
        return NAME

    def trace_headers(self) -> Mapping[str, str] | None:
        return self._headers

    def async_killed_or_stopped(self) -> asyncio.Future[bool]:
        return asyncio.shield(self.stopped)


async def collect(outputs: AsyncIterator[Mapping[str, object]]) -> list[Mapping[str, object]]:
    return [output async for output in outputs]


def ids_of(outputs: list[Mapping[str, Any]]) -> list[int]:
    return [token for output in outputs for token in output["token_ids"]]


def failing(reason: str, code: int = 14, *, retryable: bool = True) -> pb.Status:
    status = pb.Status(code=code, message="it failed")
    status.details.add().Pack(pb.ErrorDetail(reason=f"ERROR_REASON_{reason}", retryable=retryable))
    return status


async def raised_by(hostile_engine: Any, *script: object, asked: object = None) -> tuple[str, str]:
    """The name of the exception that a request with this script ends with, and its text."""
    engine = await hostile_engine(scripts={NAME: script})
    engine._script = lambda request: script
    async with EngineClient(engine.target) as client:
        with pytest.raises(tuple(EXCEPTIONS.values())) as caught:
            await collect(Worker(client, EXCEPTIONS).generate(asked or {"token_ids": PROMPT}, Context()))
    return type(caught.value).__name__, str(caught.value)


async def test_an_answer_arrives_whole(engine_server):
    serving = await engine_server()
    async with EngineClient(serving.server.target) as client:
        asked = {"token_ids": PROMPT, "stop_conditions": {"max_tokens": 20, "ignore_eos": True}}
        outputs = await collect(Worker(client, EXCEPTIONS).generate(asked, Context()))
    assert len(ids_of(outputs)) == 20
    assert outputs[-1]["finish_reason"] == "length"
    assert outputs[-1]["completion_usage"]["completion_tokens"] == 20
    assert [output for output in outputs if "finish_reason" in output] == outputs[-1:]


async def test_several_choices_end_each_for_itself(engine_server):
    serving = await engine_server()
    async with EngineClient(serving.server.target) as client:
        asked = {"token_ids": PROMPT, "sampling_options": {"n": 3}, "stop_conditions": {"max_tokens": 4}}
        outputs = await collect(Worker(client, EXCEPTIONS).generate(asked, Context()))
    assert sorted(output["index"] for output in outputs if "finish_reason" in output) == [0, 1, 2]


async def test_a_request_ends_in_the_engine_when_the_frontend_stops_it(engine_server):
    serving = await engine_server()
    async with EngineClient(serving.server.target) as client:
        context = Context()
        outputs = Worker(client, EXCEPTIONS).generate(LONG, context)
        assert (await anext(outputs))["token_ids"]
        context.stopped.set_result(True)
        assert (await collect(outputs))[-1]["finish_reason"] == "cancelled"
        await serving.until_idle()


async def test_a_request_without_a_token_is_stopped_too(hostile_engine):
    engine = await hostile_engine()
    engine._script = lambda request: (asyncio.Event(),)
    async with EngineClient(engine.target) as client:
        context = Context()
        asking = asyncio.create_task(collect(Worker(client, EXCEPTIONS).generate(LONG, context)))
        await until_true(lambda: bool(engine.received))
        context.stopped.set_result(True)
        assert [output["finish_reason"] for output in await asking] == ["cancelled"]


async def test_a_frontend_that_takes_no_more_leaves_nothing(engine_server):
    serving = await engine_server()
    async with EngineClient(serving.server.target) as client:
        outputs = Worker(client, EXCEPTIONS).generate(LONG, Context())
        await anext(outputs)
        await outputs.aclose()
        await serving.until_idle()


async def test_what_runs_at_the_end_finishes_or_goes_on_elsewhere(engine_server):
    serving = await engine_server()
    async with EngineClient(serving.server.target) as client:
        worker = Worker(client, EXCEPTIONS)
        short = {"token_ids": PROMPT, "stop_conditions": {"max_tokens": 2}}
        finishing = asyncio.create_task(collect(worker.generate(short, Context())))
        await asyncio.sleep(0)
        await worker.drain(60)
        assert (await finishing)[-1]["finish_reason"]
        running = asyncio.create_task(collect(worker.generate(LONG, Context())))
        await serving.until(lambda load: load.running == 1)
        await worker.drain(0)
        with pytest.raises(EXCEPTIONS["EngineShutdown"]):
            await running
        await serving.until_idle()


@pytest.mark.parametrize(
    ("reason", "name"),
    [("QUEUE_FULL", "CannotConnect"), ("DRAINING", "EngineShutdown"), ("INTERNAL", "Unknown")],
)
async def test_a_refusal_becomes_an_exception_of_dynamos(hostile_engine, reason, name):
    assert await raised_by(hostile_engine, failing(reason)) == (name, "it failed")


async def test_an_answer_that_was_begun_goes_on_elsewhere_unless_a_grammar_binds_it(hostile_engine):
    script = tokens(b"po"), failing("ENGINE_DEAD")
    assert await raised_by(hostile_engine, *script) == ("EngineShutdown", "it failed")
    asked = {"token_ids": PROMPT, "sampling_options": {"guided_decoding": {"regex": "x"}}}
    assert (await raised_by(hostile_engine, *script, asked=asked))[0] == "Unknown"
    assert (await raised_by(hostile_engine, failing("ENGINE_DEAD"), asked=asked))[0] == "EngineShutdown"


async def test_a_choice_that_a_drain_has_cancelled_goes_on_elsewhere(hostile_engine):
    engine = await hostile_engine(state=pb.ENGINE_STATE_DRAINING)
    engine._script = lambda request: (tokens(b"po"), terminal(b"", 2, pb.FINISH_REASON_CANCELLED))
    async with EngineClient(engine.target) as client:
        outputs = Worker(client, EXCEPTIONS).generate({"token_ids": PROMPT}, Context())
        assert ids_of([await anext(outputs)]) == list(b"po")
        with pytest.raises(EXCEPTIONS["EngineShutdown"]):
            await anext(outputs)


async def test_a_choice_that_an_operator_has_cancelled_has_ended(hostile_engine):
    engine = await hostile_engine()
    engine._script = lambda request: (terminal(b"po", 0, pb.FINISH_REASON_CANCELLED),)
    async with EngineClient(engine.target) as client:
        outputs = await collect(Worker(client, EXCEPTIONS).generate({"token_ids": PROMPT}, Context()))
    assert [output["finish_reason"] for output in outputs] == ["cancelled"]


async def test_the_trace_of_the_caller_goes_to_the_engine(hostile_engine):
    engine = await hostile_engine()
    parent = f"00-{'1' * 32}-{'2' * 16}-01"
    async with EngineClient(engine.target) as client:
        await collect(
            Worker(client, EXCEPTIONS).generate({"token_ids": PROMPT}, Context({"traceparent": parent}))
        )
    assert engine.received[0].metadata["traceparent"] == parent


async def test_a_wrong_request_is_refused_before_the_engine_hears_of_it(hostile_engine):
    name, text = await raised_by(hostile_engine, asked={"token_ids": PROMPT, "prompt_embeds": "gASV"})
    assert name == "InvalidArgument"
    assert "prompt_embeds" in text


def test_ids_differ_although_a_request_comes_again():
    assert request_id(NAME) != request_id(NAME)
    assert request_id(NAME).startswith(NAME)
    assert re.fullmatch(r"[A-Za-z0-9._:-]{1,128}", request_id("é/" * 200))
