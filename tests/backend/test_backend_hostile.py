"""The backend under an engine that breaks the contract: one error, nothing twice, everybody else unharmed."""

from __future__ import annotations

import asyncio

import pytest

from enginewire import v1 as pb
from enginewire.backend.backend import Backend
from enginewire.backend.engines.connection.client import EngineClient
from tests.backend.asking import ask, hear
from tests.backend.hostile import END, GOOD_ANSWER, VOCAB_SIZE, event, row, terminal, tokens
from tests.patience import PATIENCE_SECONDS
from tests.server.serving import until_true

BOTH = pytest.mark.parametrize("multiplexed", [True, False], ids=["multiplexed", "generate"])
WRONG_TOTAL = terminal(b"ng", 2)
WRONG_TOTAL.completion_usage.total_tokens += 1

# Script behind the tokens "po" of choice 0, choices asked for, and what the error says.
VIOLATIONS = {
    "a token after the terminal": (
        [terminal(b"n", 2, usage=None), tokens(b"g", 3)],
        2,
        "output after the terminal of choice 0",
    ),
    "two terminals": ([terminal(b"n", 2), terminal(b"", 3)], 2, "output after the terminal of choice 0"),
    "an id beyond the vocabulary": ([tokens([VOCAB_SIZE], 2)], 1, "token id 258"),
    "an id beyond the vocabulary in a terminal": (
        [tokens([VOCAB_SIZE], 2, finish_reason=pb.FINISH_REASON_LENGTH)],
        1,
        "token id 258",
    ),
    "cumulative ids": ([tokens(b"pon", 0)], 1, "output position 0 where 2 was due"),
    "a gap": ([tokens(b"g", 3)], 1, "output position 3 where 2 was due"),
    "a duplicate": ([tokens(b"o", 1)], 1, "output position 1 where 2 was due"),
    "a wrong count of completion tokens": ([terminal(b"ng", 2, usage=(4, 5))], 1, "usage of 5"),
    "a wrong count of prompt tokens": ([terminal(b"ng", 2, usage=(5, 4))], 1, "usage of 5"),
    "a wrong total": ([WRONG_TOTAL], 1, "usage total 9"),
    "an index nobody asked for": ([tokens(b"n", 0, index=5)], 1, "index 5 of n=1"),
    "a terminal of an index nobody asked for": ([terminal(index=5)], 1, "index 5 of n=1"),
    "a finish reason nobody knows": ([terminal(b"ng", 2, reason=99)], 1, "unknown finish reason 99"),
    "too few logprobs": (
        [tokens(b"ng", 2, logprobs=pb.Logprobs(token_logprobs=[-1.0]))],
        1,
        "1 logprobs for 2 tokens",
    ),
}


ENDED_BY_THE_ENGINE = {
    "an id beyond the vocabulary in a terminal",
    "a wrong count of completion tokens",
    "a wrong count of prompt tokens",
    "a wrong total",
    "a finish reason nobody knows",
}


@BOTH
@pytest.mark.parametrize("name", VIOLATIONS)
async def test_a_violation_is_one_error_behind_a_valid_prefix(hostile_engine, vocabulary, multiplexed, name):
    script, n, message = VIOLATIONS[name]
    go_on = asyncio.Event()
    scripts = {
        "bad": [tokens(b"po"), *script, asyncio.Event()],
        "neighbour": [GOOD_ANSWER[0], go_on, GOOD_ANSWER[1]],
    }
    engine = await hostile_engine(scripts=scripts)
    async with EngineClient(engine.target, multiplexed=multiplexed) as client:
        backend = Backend(client, vocabulary)
        neighbour = asyncio.create_task(hear(backend, ask(), request_id="neighbour"))
        request = ask(sampling_options=pb.SamplingOptions(n=n))
        async with asyncio.timeout(PATIENCE_SECONDS):
            heard = await hear(backend, request, request_id="bad")
            assert heard.failure.code == 13
            assert heard.failure.reason == pb.ERROR_REASON_PROTOCOL_VIOLATION
            assert heard.failure.message.startswith(f"protocol violation: {message}")
            assert not heard.failure.retryable
            assert "pon".startswith(heard.text())
            # A run of tokens is taken or refused as a whole.
            assert len(heard.text()) >= 2 or name == "an id beyond the vocabulary"
            assert bytes(heard.token_ids()).decode() == heard.text()
            # The engine is told unless it was done, and requests beside and after get all of their answer.
            if name not in ENDED_BY_THE_ENGINE or not multiplexed:
                await until_true(lambda: engine.aborted == ["bad"])
            go_on.set()
            assert (await neighbour).text() == "pong"
            assert (await hear(backend, ask())).text() == "pong"


@BOTH
@pytest.mark.parametrize("extra", [terminal(b"", 4), tokens(b"!", 4)], ids=["terminal", "token"])
async def test_what_follows_the_last_terminal_is_not_heard(hostile_engine, vocabulary, multiplexed, extra):
    engine = await hostile_engine(scripts={"bad": [*GOOD_ANSWER, extra]})
    async with EngineClient(engine.target, multiplexed=multiplexed) as client:
        backend = Backend(client, vocabulary)
        for _ in range(3):
            heard = await hear(backend, ask(), request_id="bad")
            assert (heard.text(), heard.failure, heard.usage()) == ("pong", None, (4, 4))
        assert engine.num_streams == int(multiplexed)


@BOTH
async def test_an_engine_that_ends_without_a_terminal_is_incomplete(hostile_engine, vocabulary, multiplexed):
    engine = await hostile_engine(scripts={"bad": [tokens(b"po"), END]})
    async with EngineClient(engine.target, multiplexed=multiplexed) as client:
        backend = Backend(client, vocabulary)
        heard = await hear(backend, ask(), request_id="bad")
        assert heard.failure.reason == pb.ERROR_REASON_STREAM_INCOMPLETE
        assert heard.failure.retryable
        assert heard.text() == "po"
        assert (await hear(backend, ask())).text() == "pong"


@BOTH
@pytest.mark.parametrize(
    ("step", "message"),
    [
        (b"\xff\xff\xff", "bytes that are no Generate"),
        (bytes(100 << 20), "a message above the size limit"),
    ],
    ids=["undecodable", "too large"],
)
async def test_a_broken_message_is_a_violation(hostile_engine, vocabulary, multiplexed, step, message):
    engine = await hostile_engine(scripts={"bad": [tokens(b"po"), step, asyncio.Event()]})
    async with EngineClient(engine.target, multiplexed=multiplexed) as client:
        backend = Backend(client, vocabulary)
        async with asyncio.timeout(PATIENCE_SECONDS):
            heard = await hear(backend, ask(), request_id="bad")
            assert heard.failure.message.startswith(f"protocol violation: {message}")
            assert heard.failure.reason == pb.ERROR_REASON_PROTOCOL_VIOLATION
            assert heard.text() == "po"
            assert (await hear(backend, ask())).text() == "pong"


def unequal_columns(handle: int) -> bytes:
    frame = pb.GenerateMultiplexedResponse(handles=[handle], first_output_positions=[2, 3], token_ids=[1])
    return frame.SerializeToString()


LOST_TRACK = {
    "columns of unequal length": (unequal_columns, "columns differ in length"),
    "an event of a handle never used": (
        lambda handle: event(handle + 7, output=tokens(b"n", 2)),
        "an event for handle",
    ),
    "a row of a handle never used": (lambda handle: row(handle + 7, tokens(b"n", 2)), "tokens for handle"),
}


@pytest.mark.parametrize("name", LOST_TRACK)
async def test_an_engine_that_lost_track_loses_its_connection_once(hostile_engine, vocabulary, name):
    step, message = LOST_TRACK[name]
    engine = await hostile_engine(
        scripts={"bad": [tokens(b"po"), step], "neighbour": [tokens(b"p"), asyncio.Event()]}
    )
    async with EngineClient(engine.target) as client:
        backend = Backend(client, vocabulary)
        await client.wait_ready(5)
        async with asyncio.timeout(PATIENCE_SECONDS):
            all_heard = await asyncio.gather(
                hear(backend, ask(), request_id="neighbour"), hear(backend, ask(), request_id="bad")
            )
            for heard in all_heard:
                assert heard.failure.reason == pb.ERROR_REASON_PROTOCOL_VIOLATION
                assert message in heard.failure.message
            assert [heard.text() for heard in all_heard] == ["p", "po"]
            assert (await hear(backend, ask())).text() == "pong"
        assert engine.num_streams == 2


def empty_rows(handle: int) -> bytes:
    rows = 20_000
    return pb.GenerateMultiplexedResponse(
        handles=[handle] * rows, token_counts=[0] * rows, first_output_positions=[0] * rows
    ).SerializeToString()


@BOTH
async def test_a_flood_of_empty_outputs_costs_time_and_nothing_else(hostile_engine, vocabulary, multiplexed):
    empty = [empty_rows] * 5 if multiplexed else []
    empty += [tokens(b"", 0)] * 1_500 + [tokens(b"", 0, engine_data=b"{}")] * 1_500
    engine = await hostile_engine(scripts={"bad": [*empty, *GOOD_ANSWER]})
    async with EngineClient(engine.target, multiplexed=multiplexed) as client:
        heard = await hear(Backend(client, vocabulary), ask(), request_id="bad")
    assert (heard.text(), heard.failure) == ("pong", None)


@BOTH
async def test_max_tokens_holds_whatever_the_engine_sends(hostile_engine, vocabulary, multiplexed):
    endless = [tokens(b"abc", 3 * number) for number in range(100)]
    engine = await hostile_engine(scripts={"bad": [*endless, asyncio.Event()]})
    async with EngineClient(engine.target, multiplexed=multiplexed) as client:
        heard = await hear(Backend(client, vocabulary), ask(max_tokens=7), request_id="bad")
        assert heard.text() == "abcabca"
        assert heard.finishes() == {0: pb.FINISH_REASON_LENGTH}
        assert heard.usage() == (4, 7)
        await until_true(lambda: engine.aborted == ["bad"])
