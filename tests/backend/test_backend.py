"""The backend on the mocker, over a real socket: text, ends, usage, and nothing left behind."""

from __future__ import annotations

import asyncio
import functools
import gc
import itertools
import random
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from enginewire import v1 as pb
from enginewire.backend.backend import Backend, decode
from enginewire.backend.decoding.request_decoder import RequestDecoder
from enginewire.backend.decoding.stop_conditions import StopConditions
from enginewire.backend.decoding.vocabulary import Vocabulary
from enginewire.backend.engines.connection import client as engine_client, multiplexed
from enginewire.backend.engines.connection.client import EngineClient
from enginewire.backend.engines.stream import Chunk, EngineStream
from enginewire.backend.inline_decoder import RequestTracker
from enginewire.backend.replay.attempts import Attempts
from tests.backend.asking import Heard, ask, hear
from tests.long import long
from tests.server.serving import Serving

BOTH = pytest.mark.parametrize("is_multiplexed", [True, False], ids=["multiplexed", "generate"])
SLOW = {"mocker_itl_ms": 5.0}
# More than any test waits for.
ENDLESS = 4000
Connect = Callable[..., Awaitable[Backend]]


@pytest.fixture
async def connect(vocabulary: Vocabulary) -> AsyncIterator[Connect]:
    """`await connect(serving)` is a backend on a server."""
    clients: list[EngineClient] = []

    async def make(serving: Serving, is_multiplexed: bool = True) -> Backend:
        clients.append(EngineClient(serving.server.target, multiplexed=is_multiplexed))
        return Backend(clients[-1], vocabulary)

    yield make
    for client in clients:
        await client.close()


def endless(**fields: object) -> pb.PreprocessedRequest:
    request = ask(b"abcdefgh", ENDLESS, **fields)
    request.stop_conditions.ignore_eos = True
    return request


@BOTH
async def test_text_and_usage_arrive(engine_server, connect, is_multiplexed):
    backend = await connect(await engine_server(), is_multiplexed)
    heard = await hear(backend, ask("héllo".encode()))
    assert heard.text() == "héllo"
    assert heard.finishes() == {0: pb.FINISH_REASON_EOS}
    # The hidden end-of-sequence token is a token all the same.
    assert heard.usage() == (6, 7)
    cut = await hear(backend, ask(b"hello", 3))
    assert (cut.text(), cut.finishes(), cut.usage()) == ("hel", {0: pb.FINISH_REASON_LENGTH}, (5, 3))


@BOTH
async def test_a_tracker_learns_what_the_request_cost(engine_server, connect, is_multiplexed):
    backend = await connect(await engine_server(), is_multiplexed)
    tracker = RequestTracker()
    await hear(backend, ask(b"hello", 4), tracker=tracker)
    assert tracker.num_tokens == 4
    assert tracker.detokenize_ns > 0
    assert tracker.engine_lifetime_id == (await backend.client.info()).engine_lifetime_id


@BOTH
async def test_a_request_that_has_ended_does_not_wait_for_the_garbage_collector(
    engine_server, connect, is_multiplexed
):
    backend = await connect(await engine_server(), is_multiplexed)
    gc.collect()
    gc.disable()
    try:
        await hear(backend, ask(b"hello", 4))
        # The pump of a Generate call ends a moment after its stream.
        await asyncio.sleep(0.05)
        kinds = (Attempts, EngineStream, RequestDecoder)
        # By type: isinstance asks lazy modules of other libraries, which warn.
        assert [each for each in gc.get_objects() if type(each) in kinds] == []
    finally:
        gc.enable()


@BOTH
async def test_a_local_stop_ends_the_text_counts_up_to_it_and_frees_the_engine(
    engine_server, connect, is_multiplexed
):
    serving = await engine_server(**SLOW)
    backend = await connect(serving, is_multiplexed)
    request = endless()
    request.stop_conditions.stop.append("habc")
    heard = await hear(backend, request)
    assert heard.text() == "abcdefg"
    assert heard.finishes() == {0: pb.FINISH_REASON_STOP}
    assert heard.outputs[-1].stop_reason == "habc"
    # The mocker repeats the prompt behind an end-of-sequence token, which counts and shows nothing.
    assert heard.usage() == (8, 12)
    load = await serving.until_idle()
    assert load.tokens_generated < 200
    # The engine got nothing of what only a backend can do.
    assert list(request.stop_conditions.stop) == ["habc"]


async def leave_by_aclose(backend: Backend, serving: Serving) -> None:
    outputs = backend.generate(endless())
    await anext(outputs)
    await outputs.aclose()


async def leave_by_cancel(backend: Backend, serving: Serving) -> None:
    task = asyncio.create_task(hear(backend, endless()))
    await serving.until(lambda load: load.tokens_generated > 3)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def leave_as_garbage(backend: Backend, serving: Serving) -> None:
    outputs = backend.generate(endless())
    await anext(outputs)
    del outputs
    gc.collect()


async def leave_by_exception(backend: Backend, serving: Serving) -> None:
    async def fail() -> None:
        async for _ in backend.generate(endless()):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    gc.collect()


async def leave_by_close(backend: Backend, serving: Serving) -> None:
    task = asyncio.create_task(hear(backend, endless()))
    await serving.until(lambda load: load.tokens_generated > 3)
    await backend.client.close()
    heard = await task
    assert heard.failure.reason == pb.ERROR_REASON_CANCELLED
    assert heard.text().startswith("abc")


@BOTH
@pytest.mark.parametrize(
    "leave", [leave_by_aclose, leave_by_cancel, leave_as_garbage, leave_by_exception, leave_by_close]
)
async def test_whoever_leaves_frees_the_engine(engine_server, connect, is_multiplexed, leave):
    serving = await engine_server(**SLOW)
    backend = await connect(serving, is_multiplexed)
    await leave(backend, serving)
    load = await serving.until_idle()
    assert load.tokens_generated < 400


@BOTH
async def test_a_consumer_that_stops_reading_is_given_up_with_its_prefix_intact(
    engine_server, connect, monkeypatch, is_multiplexed
):
    bounded = functools.partial(EngineStream, max_waiting_tokens=500)
    for module in (multiplexed, engine_client):
        monkeypatch.setattr(module, "EngineStream", bounded)
    serving = await engine_server(mocker_itl_ms=0.5)
    backend = await connect(serving, is_multiplexed)
    outputs = backend.generate(endless())
    first = await anext(outputs)
    load = await serving.until_idle()
    assert load.tokens_generated < ENDLESS / 2
    heard = Heard([first, *[item async for item in outputs]])
    assert heard.failure.reason == pb.ERROR_REASON_SLOW_CONSUMER
    assert 450 < len(heard.token_ids()) < 1000
    assert ("abcdefgh" * 200).startswith(heard.text())


@BOTH
async def test_the_engine_keeps_the_deadline(engine_server, connect, is_multiplexed):
    serving = await engine_server(**SLOW)
    backend = await connect(serving, is_multiplexed)
    heard = await hear(backend, endless(), timeout=1.0)
    assert heard.failure.reason == pb.ERROR_REASON_DEADLINE_EXCEEDED
    assert heard.failure.code == 4
    assert ("abcdefgh" * 40).startswith(heard.text())
    assert len(heard.text()) > 5
    await serving.until_idle()


REFUSED = {
    "unknown model": (ask(model="nope"), 5, "model", pb.ERROR_REASON_MODEL_NOT_FOUND),
    "empty prompt": (ask(b""), 3, "token_ids", pb.ERROR_REASON_INVALID_REQUEST),
    "stop string": (
        pb.PreprocessedRequest(token_ids=b"x", stop_conditions=pb.StopConditions(stop=[""])),
        3,
        "stop_conditions.stop[0]",
        pb.ERROR_REASON_INVALID_REQUEST,
    ),
    "choices": (
        ask(sampling_options=pb.SamplingOptions(n=1_000_000)),
        3,
        "sampling_options.n",
        pb.ERROR_REASON_INVALID_REQUEST,
    ),
}


@BOTH
@pytest.mark.parametrize("name", REFUSED)
async def test_a_refusal_is_one_error_with_its_field(engine_server, connect, is_multiplexed, name):
    request, code, field, reason = REFUSED[name]
    backend = await connect(await engine_server(), is_multiplexed)
    heard = await hear(backend, request)
    assert len(heard.items) == 1
    failure = heard.failure
    assert (failure.code, failure.field, failure.reason, failure.retryable) == (code, field, reason, False)


@BOTH
async def test_a_failed_step_keeps_what_was_delivered(engine_server, connect, is_multiplexed):
    serving = await engine_server(mocker_fault="step:6", **SLOW)
    backend = await connect(serving, is_multiplexed)
    heard = await hear(backend, endless())
    assert heard.failure.reason == pb.ERROR_REASON_INTERNAL
    assert "abcdefgh".startswith(heard.text())
    assert len(heard.text()) > 2
    assert (await hear(backend, ask(b"again"))).text() == "again"


@BOTH
async def test_choices_and_their_log_probabilities_stay_apart_and_aligned(
    engine_server, connect, is_multiplexed
):
    backend = await connect(await engine_server(), is_multiplexed)
    request = ask(
        b"abcdefgh",
        30,
        sampling_options=pb.SamplingOptions(n=3, seed=5, temperature=1.0),
        output_options=pb.OutputOptions(logprobs=2),
    )
    request.stop_conditions.stop.append("cd")
    heard = await hear(backend, request, with_tokens=True)
    assert heard.failure is None
    assert sorted(heard.finishes()) == [0, 1, 2]
    for output in heard.outputs:
        rows = len(output.token_ids)
        assert len(output.log_probs) == len(output.top_logprobs) == len(output.tokens or ()) == rows
    assert heard.usage() == (8, sum(len(heard.token_ids(index)) for index in range(3)))


def any_request(source: random.Random) -> pb.PreprocessedRequest:
    request = ask(
        bytes(source.choices(b"abcdefgh ", k=source.randint(1, 40))),
        source.randint(1, 60),
        sampling_options=pb.SamplingOptions(
            n=source.choice([1, 1, 2, 3]), seed=source.getrandbits(32), temperature=source.choice([0.0, 1.0])
        ),
    )
    if source.random() < 0.4:
        request.output_options.logprobs = source.randint(0, 3)
    if source.random() < 0.4:
        request.stop_conditions.stop.extend(["ab", "h a"])
    if source.random() < 0.3:
        request.stop_conditions.stop_token_ids.append(ord("e"))
    request.stop_conditions.min_tokens = source.choice([0, 0, 1])
    request.stop_conditions.ignore_eos = source.random() < 0.3
    return request


def summary(heard: Heard) -> list[object]:
    """All that was heard, wherever it was cut into pieces."""
    found: list[object] = [heard.failure, heard.finishes()]
    for index in sorted(heard.finishes()):
        outputs = [output for output in heard.outputs if output.index == index]
        log_probs = [value for output in outputs for value in output.log_probs]
        top = [pairs for output in outputs for pairs in output.top_logprobs]
        tokens = [text for output in outputs for text in output.tokens or ()]
        last = outputs[-1]
        found += [heard.text(index), heard.token_ids(index), log_probs, top, tokens]
        found += [last.stop_reason, last.cum_log_probs]
    return [*found, heard.usage()]


async def test_generate_and_multiplexed_inline_or_not_say_the_same_to_64_requests(engine_server, connect):
    serving = await engine_server(max_num_seqs=256)
    source = random.Random(7)
    requests = [any_request(source) for _ in range(64)]
    all_summaries = []
    for is_multiplexed, is_inline in itertools.product((True, False), repeat=2):
        backend = await connect(serving, is_multiplexed)
        heard = await asyncio.gather(
            *[hear(backend, request, is_inline=is_inline, with_tokens=True) for request in requests]
        )
        assert is_inline == any(one.num_inline for one in heard)
        all_summaries.append([summary(one) for one in heard])
    assert all(one == all_summaries[0] for one in all_summaries[1:])
    assert {reason for one in all_summaries[0] for reason in one[1].values()} >= {
        pb.FINISH_REASON_EOS,
        pb.FINISH_REASON_LENGTH,
        pb.FINISH_REASON_STOP,
    }


@long
async def test_256_requests_at_once_say_what_they_say_one_by_one(engine_server, connect):
    serving = await engine_server(max_num_seqs=64, max_num_queued_reqs=512)
    backend = await connect(serving)
    source = random.Random(11)
    requests = [any_request(source) for _ in range(256)]
    together = await asyncio.gather(*[hear(backend, request) for request in requests])
    assert not any(heard.failure for heard in together)
    for request, heard in zip(requests, together, strict=True):
        assert summary(await hear(backend, request)) == summary(heard)


def test_outputs_before_a_violation_are_kept(vocabulary):
    decoder = RequestDecoder(vocabulary, StopConditions())
    chunks = [Chunk(0, 0, list(b"ab")), Chunk(0, 9, list(b"c")), Chunk(0, 2, list(b"d"))]
    items, violation = decode(decoder, chunks, RequestTracker())
    assert [item.data.text for item in items] == ["ab"]
    assert str(violation) == "protocol violation: output position 9 where 2 was due"


def test_nothing_behind_the_last_terminal_is_decoded(vocabulary):
    decoder = RequestDecoder(vocabulary, StopConditions(max_tokens=2))
    chunks = [Chunk(0, 0, list(b"abc")), Chunk(0, 3, list(b"d"))]
    tracker = RequestTracker()
    items, violation = decode(decoder, chunks, tracker)
    outputs = [item.data for item in items]
    assert [(output.text, output.finish_reason) for output in outputs] == [("ab", pb.FINISH_REASON_LENGTH)]
    assert violation is None
    assert tracker.num_tokens == 3
