"""Log-probabilities of prompts through the SDK, from a real model in a process of its own."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
from openai import OpenAI

from tests.backend.frontends.http_api.test_process import process

__all__ = ["process"]  # a fixture

PROMPT = "What is Enginewire?"


@pytest.fixture(scope="module")
def client(process: tuple[object, str]) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{process[1]}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_an_echo_has_the_log_probabilities_of_the_prompt_before_those_of_the_answer(client: OpenAI) -> None:
    model = client.models.list().data[0].id
    answer = client.completions.create(
        model=model, prompt=PROMPT, echo=True, logprobs=2, max_tokens=3, temperature=0
    ).choices[0]
    columns = answer.logprobs
    assert columns is not None
    assert columns.tokens is not None
    assert "".join(columns.tokens) == answer.text
    assert answer.text.startswith(PROMPT)
    assert columns.token_logprobs is not None
    first, *others = columns.token_logprobs
    assert first is None
    assert all(-100 < value <= 0 for value in others)
    assert columns.top_logprobs is not None
    assert columns.top_logprobs[0] is None
    # Greedy: what was generated is the best alternative, what was given need not be.
    for value, top in list(zip(columns.token_logprobs, columns.top_logprobs, strict=True))[-3:]:
        assert math.isclose(value, max(top.values()), abs_tol=1e-4)


def test_a_streamed_echo_says_the_same(client: OpenAI) -> None:
    model = client.models.list().data[0].id
    asked = {"model": model, "prompt": PROMPT, "echo": True, "logprobs": 0, "max_tokens": 3, "temperature": 0}
    whole = client.completions.create(**asked).choices[0]
    chunks = [choice for chunk in client.completions.create(**asked, stream=True) for choice in chunk.choices]
    assert "".join(chunk.text for chunk in chunks) == whole.text
    tokens = [token for chunk in chunks if chunk.logprobs for token in chunk.logprobs.tokens or []]
    offsets = [at for chunk in chunks if chunk.logprobs for at in chunk.logprobs.text_offset or []]
    assert whole.logprobs is not None
    assert (tokens, offsets) == (whole.logprobs.tokens, whole.logprobs.text_offset)


def test_prompt_logprobs_are_the_scores_of_the_echo(client: OpenAI) -> None:
    model = client.models.list().data[0].id
    asked = {"model": model, "prompt": PROMPT, "max_tokens": 0, "echo": True, "logprobs": 1}
    echoed = client.completions.create(**asked).choices[0].logprobs
    scored = client.completions.create(
        model=model, prompt=PROMPT, max_tokens=1, extra_body={"prompt_logprobs": 1}
    ).choices[0]
    assert scored.model_extra is not None
    none, *scores = scored.model_extra["prompt_logprobs"]
    assert none is None
    assert echoed is not None
    actual = [next(iter(score.values())) for score in scores]
    assert [each["decoded_token"] for each in actual] == (echoed.tokens or [])[1:]
    assert [each["logprob"] for each in actual] == pytest.approx((echoed.token_logprobs or [])[1:], abs=1e-4)
    assert all(each["rank"] >= 1 for each in actual)


def test_a_chat_has_the_scores_of_its_whole_prompt_beside_the_choices(client: OpenAI) -> None:
    model = client.models.list().data[0].id
    answer = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": PROMPT}],
        max_tokens=2,
        n=2,
        extra_body={"prompt_logprobs": 0},
    )
    assert answer.model_extra is not None
    assert answer.usage is not None
    scores = answer.model_extra["prompt_logprobs"]
    assert len(scores) == answer.usage.prompt_tokens
    assert [len(score or {}) for score in scores] == [0] + [1] * (len(scores) - 1)
    text = "".join(each["decoded_token"] for score in scores[1:] for each in score.values())
    assert PROMPT in text
