"""What a backend knows of its requests, from their beginning to every kind of end."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from enginewire import v1 as pb
from enginewire.backend.activity.activity import MAX_ENDED
from enginewire.backend.activity.live_request import LiveRequest
from enginewire.backend.backend import Backend
from enginewire.backend.engines.connection.client import EngineClient
from enginewire.backend.engines.endpoints import Endpoints
from enginewire.backend.replay.retry import RetryPolicy
from enginewire.metrics.stats_line import Seen
from tests.backend.asking import ask, hear
from tests.backend.hostile import PROMPT, terminal, tokens
from tests.backend.replay.test_attempts import LOST, Lives, backend_on
from tests.patience import PATIENCE_SECONDS

FOREVER = 30.0


async def only(backend: Backend) -> LiveRequest:
    """The one live request, once it is there."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not backend.activity.live:  # noqa: ASYNC110  # there is no event to await
            await asyncio.sleep(0.001)
    (live,) = backend.activity.live
    return live


async def in_phase(live: LiveRequest, phase: str) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while live.phase != phase:  # noqa: ASYNC110
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("multiplexed", [True, False])
async def test_a_request_is_known_while_it_lives_and_an_abort_ends_it(
    socket_folder, vocabulary, multiplexed
) -> None:
    engine = Lives([0.05, tokens(b"say hel"), FOREVER])
    request = ask(max_tokens=50, stop_conditions=pb.StopConditions(stop=["hello"]))
    async with backend_on(socket_folder, vocabulary, engine, multiplexed=multiplexed) as backend:
        asked = asyncio.create_task(hear(backend, request, request_id="mine"))
        live = await only(backend)
        assert (live.request_id, live.num_prompt_tokens, live.max_tokens) == ("mine", len(PROMPT), 50)
        await in_phase(live, "decode")
        assert (live.num_tokens, live.num_withheld, live.num_attempts) == (7, 3, 1)
        assert live.target == engine.target
        assert backend.activity.seen() == Seen(
            prompt_tokens=len(PROMPT), generated_tokens=7, running=1, failed=0
        )
        assert backend.activity.abort("another", "why") == 0
        assert backend.activity.abort("mine", "why") == 1
        heard = await asked
        assert heard.text() == "say "
        assert heard.failure is not None
        assert (heard.failure.reason, heard.failure.message) == (pb.ERROR_REASON_CANCELLED, "why")
        assert backend.activity.live == []
        totals = backend.activity.totals
        assert (totals.finished["abort"], totals.finished["error"]) == (1, 0)
        assert totals.failed == {pb.ERROR_REASON_CANCELLED: 1}


async def test_an_abort_reaches_a_request_that_still_waits_for_an_engine(socket_folder, vocabulary) -> None:
    nobody = EngineClient(f"unix:{socket_folder}/nobody.sock")
    async with Endpoints([nobody]) as engines:
        backend = Backend(engines, vocabulary, retry=RetryPolicy(recovery=FOREVER))
        asked = asyncio.create_task(hear(backend, ask()))
        live = await only(backend)
        assert (live.phase, live.num_attempts) == ("connecting", 0)
        assert backend.activity.seen() == Seen(waiting=1, failed=0)
        live.abort("enough")
        async with asyncio.timeout(PATIENCE_SECONDS):
            heard = await asked
        assert heard.failure is not None
        assert heard.failure.reason == pb.ERROR_REASON_CANCELLED


async def test_a_request_that_lost_its_engine_recovers_and_is_counted(socket_folder, vocabulary) -> None:
    policy = RetryPolicy(shortest_backoff=1.0, longest_backoff=1.0)
    waited, decoded = asyncio.Event(), asyncio.Event()
    engine = Lives([tokens(b"pon"), LOST], [waited, tokens(b"g", 3), decoded, terminal(b"", 4)])
    async with backend_on(socket_folder, vocabulary, engine, policy=policy) as backend:
        asked = asyncio.create_task(hear(backend, ask()))
        live = await only(backend)
        await in_phase(live, "recovering")
        await in_phase(live, "waiting")
        waited.set()
        await in_phase(live, "decode")
        assert live.num_attempts == 2
        decoded.set()
        assert (await asked).text() == "pong"
        totals = backend.activity.totals
        assert (totals.retries, totals.continuations) == (1, 1)
        assert (totals.finished["length"], totals.failed) == (1, {})
        assert (totals.prompt_tokens, backend.activity.generated_tokens) == (len(PROMPT), 4)


async def test_every_choice_is_counted_by_how_it_ended(socket_folder, vocabulary) -> None:
    request = ask(sampling_options=pb.SamplingOptions(n=3))
    done = [tokens(b"a", finish_reason=pb.FINISH_REASON_EOS), tokens(b"bc", index=1), FOREVER]
    engine = Lives(done)
    async with backend_on(socket_folder, vocabulary, engine, policy=None) as backend:
        async with aclosing(backend.generate(request)) as items:
            async for item in items:
                assert item.data is not None
                if item.data.index == 1:
                    break
        totals = backend.activity.totals
        assert (totals.finished["stop"], totals.finished["abort"]) == (1, 2)
        assert totals.first_token.count == 1
        assert totals.whole.count == 0
        assert totals.failed == {}


async def test_tokens_that_come_together_count_one_by_one(socket_folder, vocabulary) -> None:
    seen = [asyncio.Event(), asyncio.Event()]
    engine = Lives([tokens(b"a"), seen[0], tokens(b"bcde", 1), seen[1], terminal(b"", 5)])
    async with backend_on(socket_folder, vocabulary, engine) as backend:
        async for _ in backend.generate(ask()):
            # As they are counted where they arrive, the engine goes on no sooner.
            await asyncio.sleep(0.05)
            if seen:
                seen.pop(0).set()
        totals = backend.activity.totals
    assert totals.between_tokens.count == 4
    assert 0.04 < totals.between_tokens.sum <= totals.whole.sum
    assert totals.between_tokens.cumulative()[2] == 0, "four tokens took 50 ms"
    assert totals.answer_lengths.sum == 5
    assert totals.whole.sum > 0.09


async def test_tokens_that_a_caller_brings_along_are_not_counted_as_passed_on(
    socket_folder, vocabulary
) -> None:
    resume = pb.Resume(choices=[pb.ResumedChoice(index=0, generated_token_ids=b"po")], attempt=1)
    engine = Lives([terminal(b"ng", 2)])
    async with backend_on(socket_folder, vocabulary, engine) as backend:
        assert (await hear(backend, ask(resume=resume))).text() == "ng"
        assert backend.activity.generated_tokens == backend.activity.totals.answer_lengths.sum == 2


async def test_requests_of_one_id_are_two_requests(socket_folder, vocabulary) -> None:
    engine = Lives([FOREVER], [FOREVER])
    async with backend_on(socket_folder, vocabulary, engine) as backend:
        both = [asyncio.create_task(hear(backend, ask(), request_id="same")) for _ in range(2)]
        await asyncio.sleep(0)
        assert len(backend.activity.live) == 2
        assert backend.activity.abort("same", "why") == 2
        for heard in await asyncio.gather(*both):
            assert heard.failure is not None
        assert backend.activity.live == []


async def test_a_stop_that_only_this_side_saw_is_counted(socket_folder, vocabulary) -> None:
    request = ask(stop_conditions=pb.StopConditions(stop=["on"]))
    engine = Lives([tokens(b"pong"), FOREVER])
    async with backend_on(socket_folder, vocabulary, engine) as backend:
        await hear(backend, request)
        assert backend.activity.totals.stopped_here == 1
        assert backend.activity.totals.detokenize_seconds > 0


async def test_what_an_engine_has_answered_is_delivered_as_fast_as_its_caller_reads(
    socket_folder, vocabulary
) -> None:
    seen = asyncio.Event()
    engine = Lives([tokens(b"a"), seen, tokens(b"bc", 1, finish_reason=pb.FINISH_REASON_LENGTH)])
    async with backend_on(socket_folder, vocabulary, engine) as backend:
        async with aclosing(backend.generate(ask(), face="door")) as items:
            await anext(items)
            live = await only(backend)
            assert (live.phase, live.face) == ("decode", "door")
            seen.set()
            await in_phase(live, "delivering")
            assert [item.data.finish_reason async for item in items if item.data] == [pb.FINISH_REASON_LENGTH]
        (ended,) = backend.activity.ended
        assert (ended.face, ended.outcome, ended.num_tokens) == ("door", "length", 3)
        assert ended.ttft is not None
        assert 0 < ended.ttft < ended.seconds


async def test_the_requests_that_ended_last_are_known_with_how_they_ended(socket_folder, vocabulary) -> None:
    eos = tokens(b"a", finish_reason=pb.FINISH_REASON_EOS)
    both = [eos, tokens(b"b", index=1, finish_reason=pb.FINISH_REASON_LENGTH)]
    scripts = [[eos] for _ in range(MAX_ENDED)]
    engine = Lives([eos], both, [tokens(b"c"), LOST], [eos, FOREVER], *scripts)
    two = ask(sampling_options=pb.SamplingOptions(n=2))
    async with backend_on(socket_folder, vocabulary, engine, policy=None) as backend:
        await hear(backend, ask(), request_id="first")
        await hear(backend, two)
        await hear(backend, ask())
        async with aclosing(backend.generate(two)) as items:
            await anext(items)
        outcomes = [ended.outcome for ended in backend.activity.ended]
        assert outcomes == ["stop, abort", "engine_dead", "stop, length", "stop"]
        for _ in scripts:
            await hear(backend, ask())
        assert len(backend.activity.ended) == MAX_ENDED
        assert "first" not in {ended.request_id for ended in backend.activity.ended}
