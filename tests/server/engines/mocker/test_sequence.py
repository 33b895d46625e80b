from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings, strategies as st

from enginewire import v1 as pb
from enginewire.server.engines.mocker.tokenizer import EOS
from enginewire.server.failures import ContextExceeded, InvalidRequest
from tests.long import examples
from tests.server.engines.mocker.mockers import HELLO, assert_idle, sampled, started


async def test_greedy_echoes_the_prompt_and_ends_with_eos() -> None:
    recorder = await started()
    answer = await recorder.run(token_ids=HELLO)
    choice = answer.choices[0]
    assert (choice.token_ids, choice.reason, choice.first_position) == ([*HELLO, EOS], "EOS", 0)
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (
        6,
        7,
        13,
    )
    assert not choice.terminal.HasField("stop_match")
    assert_idle(recorder)


@pytest.mark.parametrize(
    ("stop", "length", "reason"),
    [
        ({"max_tokens": 1}, 1, "LENGTH"),
        ({"max_tokens": 7}, 7, "EOS"),
        ({"max_tokens": 20, "ignore_eos": True}, 20, "LENGTH"),
        ({"max_tokens": 1000, "ignore_eos": True}, 1000, "LENGTH"),
        ({"min_tokens": 7}, 7, "EOS"),
        ({"min_tokens": 8}, 14, "EOS"),
        ({"stop_token_ids": [ord("l")]}, 3, "STOP"),
        ({"stop_token_ids_visible": [ord("!"), ord("o")]}, 5, "STOP"),
        ({"stop_token_ids_hidden": [ord("l")]}, 3, "EOS"),
        ({"stop_token_ids": [ord("l")], "min_tokens": 4}, 4, "STOP"),
        ({"stop_token_ids": [ord("l")], "min_tokens": 8}, 10, "STOP"),
        ({"stop_token_ids": [ord("l")], "max_tokens": 3}, 3, "STOP"),
        ({"stop_token_ids": [ord("l")], "ignore_eos": True}, 3, "STOP"),
        ({"stop_token_ids_hidden": [ord("l")], "ignore_eos": True, "max_tokens": 9}, 9, "LENGTH"),
        ({"stop_token_ids": [ord("l")], "stop_token_ids_hidden": [ord("l")]}, 3, "EOS"),
        ({"stop_token_ids": [EOS]}, 7, "EOS"),
        ({"stop_token_ids": [EOS], "ignore_eos": True}, 7, "STOP"),
    ],
)
async def test_a_choice_ends_where_its_conditions_say(
    stop: dict[str, object], length: int, reason: str
) -> None:
    recorder = await started()
    # The echo begins again after its EOS, so that every condition is met in time.
    limits = {"max_tokens": 30, **stop}
    choice = (await recorder.run(token_ids=HELLO, stop_conditions=limits)).choices[0]
    assert (len(choice.token_ids), choice.reason) == (length, reason)
    assert choice.terminal.HasField("stop_match") == (reason == "STOP")
    if reason == "STOP":
        assert choice.terminal.stop_match.token_id == choice.token_ids[-1]


async def test_the_request_s_eos_ids_replace_the_engine_s() -> None:
    recorder = await started()
    choice = (await recorder.run(token_ids=HELLO, eos_token_ids=[ord("o")])).choices[0]
    assert (choice.token_ids[-1], choice.reason) == (ord("o"), "EOS")


async def test_a_full_context_ends_a_choice_with_length() -> None:
    recorder = await started(context_length=300)
    stop = {"ignore_eos": True}
    for limits in (stop, {**stop, "max_tokens": 2**32 - 1}):
        choice = (await recorder.run(token_ids=HELLO, stop_conditions=limits)).choices[0]
        assert (len(choice.token_ids), choice.reason) == (294, "LENGTH")
    with pytest.raises(ContextExceeded):
        recorder.submit(token_ids=[1] * 300)


@settings(max_examples=examples(40), deadline=None)
@given(
    st.integers(0, 600),
    st.sampled_from([{}, {"ignore_eos": True}, {"stop_token_ids": [ord("o")], "min_tokens": 300}]),
    st.sampled_from([0.0, 1.0]),
    st.booleans(),
)
def test_a_resumed_choice_goes_on_exactly_where_it_was(
    cut: int, stop: dict[str, object], temperature: float, logprobs: bool
) -> None:
    async def scenario() -> None:
        recorder = await started()
        request = pb.PreprocessedRequest(token_ids=HELLO)
        request.stop_conditions.CopyFrom(pb.StopConditions(**{"max_tokens": 500, **stop}))
        request.sampling_options.CopyFrom(pb.SamplingOptions(temperature=temperature, seed=11))
        if logprobs:
            request.output_options.logprobs = 0
        whole = (await recorder.run(request)).choices[0]
        delivered = whole.token_ids[:cut]
        request.resume.choices.add(generated_token_ids=delivered)
        answer = await recorder.run(request)
        rest = answer.choices[0]
        assert rest.first_position == len(delivered)
        assert delivered + rest.token_ids == whole.token_ids
        assert (rest.reason, rest.terminal.stop_match) == (whole.reason, whole.terminal.stop_match)
        assert answer.usage.completion_tokens == len(whole.token_ids)
        assert answer.usage.prompt_tokens == len(HELLO)
        assert_idle(recorder)

    asyncio.run(scenario())


async def test_a_finished_choice_is_not_generated_again_but_counted() -> None:
    recorder = await started()
    resume = pb.Resume(choices=[{"index": 0, "generated_token_ids": [1, 2], "finished": True}])
    answer = await recorder.run(token_ids=HELLO, sampling_options={"n": 2}, resume=resume)
    assert set(answer.choices) == {1}
    assert answer.usage.completion_tokens == 2 + 7
    resume.choices.add(index=1, finished=True)
    with pytest.raises(InvalidRequest):
        recorder.submit(token_ids=HELLO, sampling_options={"n": 2}, resume=resume)


async def test_every_choice_has_one_terminal_and_the_last_one_the_usage() -> None:
    recorder = await started()
    answer = sampled(recorder, n=5, seed=3)
    await recorder.idle()
    assert sorted(answer.choices) == [0, 1, 2, 3, 4]
    assert all(choice.terminal is not None for choice in answer.choices.values())
    assert answer.usage.completion_tokens == sum(len(c.token_ids) for c in answer.choices.values())
    assert answer.usage.prompt_tokens == len(HELLO)
