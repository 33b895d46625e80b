from __future__ import annotations

import math
import re
from collections.abc import Iterator

import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletionMessageParam

from tests.backend.frontends.smg.gateway import gateway, worker
from tests.patience import PATIENCE_SECONDS

COLOURS = re.compile(r"\x1b\[[\d;]*m")
QUESTION: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What is Enginewire?"}]
ANSWER = (
    "Enginewire is the wire between an LLM engine and the backend in front of it: one protobuf contract, an"
    " engine server, a backend client and a conformance kit."
)


@pytest.fixture(scope="module")
def sdk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenAI]:
    """The gateway with the built-in model behind it, through our backend."""
    folder = tmp_path_factory.mktemp("smg")
    with worker(folder, "builtin:demo --log-level error") as url, gateway(folder, url) as base_url:
        # The gateway looks for tokenizers on a public hub when it can; it shall not have tried. A request id
        # may have these letters too.
        said = COLOURS.sub("", (folder / "smg.log").read_text(errors="replace"))
        assert not re.search(r"\bhub\b", said, re.IGNORECASE), said
        with OpenAI(base_url=base_url, api_key="none", max_retries=0, timeout=PATIENCE_SECONDS) as client:
            yield client


def model_of(sdk: OpenAI) -> str:
    return sdk.models.list().data[0].id


def streamed(sdk: OpenAI, **given: object) -> tuple[dict[int, str], dict[int, str]]:
    """Text and finish reason of each choice."""
    texts: dict[int, str] = {}
    reasons: dict[int, str] = {}
    for chunk in sdk.chat.completions.create(model=model_of(sdk), messages=QUESTION, stream=True, **given):
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
            if choice.finish_reason is not None:
                reasons[choice.index] = choice.finish_reason
    return texts, reasons


def test_the_gateway_answers_with_the_text_of_our_model(sdk: OpenAI) -> None:
    answer = sdk.chat.completions.create(model=model_of(sdk), messages=QUESTION)
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == (ANSWER, "stop")
    assert answer.usage is not None
    assert answer.usage.prompt_tokens > 0
    assert answer.usage.completion_tokens > 20


def test_a_stream_of_two_choices_has_both_whole(sdk: OpenAI) -> None:
    texts, reasons = streamed(sdk, n=2)
    assert texts == {0: ANSWER, 1: ANSWER}
    assert reasons == {0: "stop", 1: "stop"}


def test_the_stream_counts_the_tokens_of_all_choices(sdk: OpenAI) -> None:
    chunks = list(
        sdk.chat.completions.create(
            model=model_of(sdk),
            messages=QUESTION,
            stream=True,
            n=2,
            max_tokens=5,
            stream_options={"include_usage": True},
        )
    )
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 10


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_ends_the_text_before_it(sdk: OpenAI, stream: bool) -> None:
    if stream:
        texts, reasons = streamed(sdk, stop=[" between"])
        text, reason = texts[0], reasons[0]
    else:
        choice = sdk.chat.completions.create(
            model=model_of(sdk), messages=QUESTION, stop=[" between"]
        ).choices[0]
        text, reason = choice.message.content or "", choice.finish_reason
    assert (text, reason) == ("Enginewire is the wire", "stop")


def test_a_stop_string_ends_the_generation_too(sdk: OpenAI) -> None:
    """The gateway trims at a stop string by itself; that few tokens were computed is our doing."""
    answer = sdk.chat.completions.create(model=model_of(sdk), messages=QUESTION, stop=[" between"])
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 5


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_come_with_their_alternatives(sdk: OpenAI, stream: bool) -> None:
    asked = {"model": model_of(sdk), "messages": QUESTION, "max_tokens": 3, "top_logprobs": 2}
    given = sdk.chat.completions.create(**asked, logprobs=True, stream=stream)
    choices = [chunk.choices[0] for chunk in given if chunk.choices] if stream else [given.choices[0]]
    rows = [row for choice in choices if choice.logprobs for row in choice.logprobs.content]
    assert [row.token for row in rows] == ["Enginewire", " is", " the"]
    assert all(row.top_logprobs[0].token == row.token for row in rows)
    assert all(len(row.top_logprobs) == 2 and row.logprob <= 0 for row in rows)


def test_max_tokens_finishes_with_length(sdk: OpenAI) -> None:
    assert streamed(sdk, max_tokens=2) == ({0: "Enginewire is"}, {0: "length"})


def test_embeddings_come_through_the_gateway(sdk: OpenAI) -> None:
    one, same, other = (
        sdk.embeddings.create(model=model_of(sdk), input=text, encoding_format="float").data[0].embedding
        for text in ("What is Enginewire?", "What is Enginewire?", "another text")
    )
    assert one == same != other
    assert math.hypot(*one) == pytest.approx(1.0, abs=1e-3)
