"""What llama.cpp's server answers behind ours, beside the torch engine on the same weights."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from enginewire import v1 as pb
from enginewire.server.demo_model import questions
from tests.openai_engine.live.conftest import Llama
from tests.openai_engine.recording import question
from tests.vllm_engine.live.conftest import Server
from tests.vllm_engine.live.test_answers import outputs, tokens_of
from tests.vllm_engine.live.test_replay import (
    check_all_answered,
    heard_while,
    migrations,
    tokenizer_of,
    truth_of,
)

DEAD = 70


def asked(text: str, **sampling: float) -> pb.PreprocessedRequest:
    made = question(text, **sampling)
    made.stop_conditions.max_tokens = 64
    return made


@pytest.mark.parametrize("first", range(10))
def test_greedy_tokens_and_their_end_are_those_of_the_torch_engine(front: Server, torch: Server, first: int):
    """The characters of some of these answers take several tokens."""
    for text in list(questions())[first::20]:
        ours, theirs = outputs(torch, asked(text)), outputs(front, asked(text))
        assert tokens_of(theirs) == tokens_of(ours)
        assert theirs[-1].finish_reason == ours[-1].finish_reason
        assert theirs[-1].completion_usage.completion_tokens == len(tokens_of(ours))


@pytest.mark.parametrize("text", ["What does Drain do?", "Say it with emoji"])
@pytest.mark.parametrize("seed", [None, 7])
def test_log_probabilities_are_those_of_the_torch_engine(
    front: Server, torch: Server, text: str, seed: int | None
):
    made = asked(text, **({} if seed is None else {"seed": seed, "temperature": 0.01}))
    made.output_options.logprobs = 3
    ours, theirs = outputs(torch, made), outputs(front, made)
    assert tokens_of(theirs) == tokens_of(ours)
    values = [[value for each in some for value in each.logprobs.token_logprobs] for some in (theirs, ours)]
    assert values[0] == pytest.approx(values[1], abs=1e-3)
    first = [[each.logprobs.top_token_ids[0] for each in some] for some in (theirs, ours)]
    assert first[0] == first[1]


def test_a_seeded_answer_that_is_resumed_is_the_undisturbed_one(front: Server):
    made = asked("Say it with emoji", seed=3, temperature=2.0)
    made.stop_conditions.ignore_eos = True
    whole = tokens_of(outputs(front, made))
    assert whole == tokens_of(outputs(front, made))
    for position in (1, 7, 30):
        made.resume.ClearField("choices")
        made.resume.choices.add(index=0, generated_token_ids=whole[:position])
        assert tokens_of(outputs(front, made)) == whole[position:]


async def test_what_a_killed_llama_server_has_begun_goes_on_at_the_torch_engine(
    llama: Callable[[], Llama], torch: Server
):
    dying = llama()
    tokenizer = await tokenizer_of(torch)
    truth = await truth_of(torch, tokenizer)
    all_heard = await heard_while(dying.end, dying.server, torch, tokenizer)
    check_all_answered(all_heard, truth)
    assert any(map(migrations, all_heard))
    assert dying.server.process.wait(60) == DEAD
