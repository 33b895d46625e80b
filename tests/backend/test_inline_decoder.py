"""Consumers without a task to wake: same answers, and nothing of theirs breaks anybody else's."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from enginewire import v1 as pb
from enginewire.backend.decoding.annotated import BackendOutput
from enginewire.backend.inline_decoder import RequestTracker
from tests.backend.asking import ask, hear
from tests.backend.hostile import tokens
from tests.backend.replay.test_attempts import Lives, backend_on
from tests.server.serving import until_true

PAUSE = 0.01


def plain_text(text: bytes) -> list[object]:
    """One frame for each byte, so that the consumer waits in between."""
    script: list[object] = []
    for position, byte in enumerate(text):
        script += [tokens(bytes([byte]), position), PAUSE]
    return script


@pytest.mark.parametrize("multiplexed", [True, False], ids=["multiplexed", "generate"])
async def test_all_but_the_first_and_the_last_output_come_inline(
    socket_folder, vocabulary, multiplexed: bool
) -> None:
    engine = Lives([*plain_text(b"answer"), 5.0])
    async with backend_on(socket_folder, vocabulary, engine, multiplexed=multiplexed) as backend:
        heard = await hear(backend, ask(max_tokens=6), is_inline=True)
    assert heard.text() == "answer"
    assert heard.finishes() == {0: pb.FINISH_REASON_LENGTH}
    # The first one begins the answer; the last one, which ends it here, is plain too.
    assert heard.num_inline == 5


async def test_what_the_function_raises_ends_its_own_request_only(socket_folder, vocabulary) -> None:
    engine = Lives([*plain_text(b"other"), 5.0], [*plain_text(b"other"), 5.0])

    def fail(output: BackendOutput) -> None:
        raise ZeroDivisionError

    async def failing() -> None:
        async for _ in backend.generate(ask(max_tokens=5), inline=fail):
            pass

    async with backend_on(socket_folder, vocabulary, engine) as backend:
        task = asyncio.create_task(failing())
        await asyncio.sleep(0)
        heard = await hear(backend, ask(max_tokens=5), is_inline=True)
        with pytest.raises(ZeroDivisionError):
            await task
        assert backend.activity.live == []
        await until_true(lambda: len(engine.aborted) == 2)
    assert heard.text() == "other"


async def test_a_function_that_is_full_gets_no_more_until_the_next_item_is_asked_for(
    socket_folder, vocabulary
) -> None:
    burst = [tokens(bytes([each]), at) for at, each in enumerate(b"n\xc3\xa9wer", 1)]
    engine = Lives([*plain_text(b"a"), *burst, 5.0])
    heard: list[tuple[str, str]] = []

    def take(output: BackendOutput) -> bool:
        heard.append(("inline", output.text))
        return True

    async with backend_on(socket_folder, vocabulary, engine) as backend:
        async for item in backend.generate(ask(max_tokens=7), inline=take):
            assert item.data is not None
            heard.append(("item", item.data.text))
    ways = [way for way, _ in heard]
    assert "".join(text for _, text in heard) == "anéwer"
    assert "inline" in ways
    assert ("inline", "inline") not in pairwise(ways)


async def test_what_was_taken_inline_counts_like_everything_else(socket_folder, vocabulary) -> None:
    engine = Lives([*plain_text(b"answer"), 5.0])
    tracker = RequestTracker()
    async with backend_on(socket_folder, vocabulary, engine) as backend:
        heard = await hear(backend, ask(max_tokens=6), is_inline=True, tracker=tracker)
        totals = backend.activity.totals
    assert heard.num_inline == 5
    assert tracker.num_tokens == 6
    assert (totals.first_token.count, totals.between_tokens.count) == (1, 5)
    assert totals.answer_lengths.sum == backend.activity.generated_tokens == 6
    assert totals.between_tokens.sum > 4 * PAUSE


async def test_what_a_stop_cut_off_inline_was_received_all_the_same(socket_folder, vocabulary) -> None:
    request = ask(max_tokens=9, stop_conditions=pb.StopConditions(stop=["st"]))
    engine = Lives([tokens(b"a"), PAUSE, tokens(b"n", 1), PAUSE, tokens(b"stop", 2), 5.0])
    tracker = RequestTracker()
    async with backend_on(socket_folder, vocabulary, engine) as backend:
        heard = await hear(backend, request, is_inline=True, tracker=tracker)
        generated = backend.activity.generated_tokens
    assert (heard.text(), heard.num_inline) == ("an", 2)
    assert (tracker.num_tokens, generated) == (6, 4)


async def test_a_first_token_that_comes_inline_is_a_first_token(socket_folder, vocabulary) -> None:
    engine = Lives([tokens(b"", engine_data=b"x"), PAUSE, tokens(b"a"), PAUSE, tokens(b"b", 1), 5.0])
    async with backend_on(socket_folder, vocabulary, engine) as backend:
        heard = await hear(backend, ask(max_tokens=2), is_inline=True)
        totals = backend.activity.totals
    assert heard.text() == "ab"
    assert (totals.first_token.count, totals.between_tokens.count) == (1, 1)


async def test_a_first_token_that_is_only_looked_up_is_a_first_token(socket_folder, vocabulary) -> None:
    script = [tokens(b"", index=1, engine_data=b"x"), PAUSE, tokens(b"a"), PAUSE, tokens(b"b", 1), PAUSE]
    engine = Lives(*[[*script, tokens(b"", index=1, finish_reason=pb.FINISH_REASON_EOS), 5.0]] * 2)
    request = ask(max_tokens=2, sampling_options=pb.SamplingOptions(n=2))
    async with backend_on(socket_folder, vocabulary, engine) as backend:
        totals = backend.activity.totals
        for number in (1, 2):  # what the first one teaches, the second one looks up
            assert (await hear(backend, request, is_inline=True)).text() == "ab"
            assert (totals.first_token.count, totals.between_tokens.count) == (number, number)


async def test_tokens_that_are_only_looked_up_stay_with_their_choice(socket_folder, vocabulary) -> None:
    script = [tokens(b"a"), tokens(b"a", index=1), PAUSE]
    for position in (1, 2):
        script += [tokens(b"a", position, index=1), PAUSE, tokens(b"a", position), PAUSE]
    engine = Lives([*script, tokens(b"b", 3), tokens(b"c", 3, index=1), 5.0])
    request = ask(max_tokens=4, sampling_options=pb.SamplingOptions(n=2))
    async with backend_on(socket_folder, vocabulary, engine) as backend:
        heard = await hear(backend, request, is_inline=True)
    assert heard.failure is None
    assert (heard.text(0), heard.text(1)) == ("aaab", "aaac")


async def test_a_broken_contract_is_an_error_as_ever(socket_folder, vocabulary) -> None:
    engine = Lives([tokens(b"a"), PAUSE, tokens(b"b", 7), 5.0])
    async with backend_on(socket_folder, vocabulary, engine) as backend:
        heard = await hear(backend, ask(), is_inline=True)
    assert heard.text() == "a"
    assert heard.failure is not None
    assert heard.failure.reason == pb.ERROR_REASON_PROTOCOL_VIOLATION
