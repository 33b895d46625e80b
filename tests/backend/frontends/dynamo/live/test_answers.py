"""The same requests through Dynamo's frontend and through ours, with one engine behind both."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.backend.frontends.dynamo.live.conftest import Deployment, chat, complete

QUESTION = "What does Drain do?"
SCHEMA = {
    "type": "object",
    "properties": {"state": {"enum": ["DRAINED", "TIMED_OUT"]}},
    "required": ["state"],
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "state", "schema": SCHEMA}}
TOOL = {
    "type": "function",
    "function": {
        "name": "drain",
        "parameters": {"type": "object", "properties": {"seconds": {"type": "integer"}}},
    },
}


def choices(response: Any) -> list[tuple[str, str]]:
    """Texts and why they ended."""
    assert response.status_code == 200, response.text
    found = sorted(response.json()["choices"], key=lambda choice: choice["index"])
    return [(c["text"] if "text" in c else c["message"]["content"], c["finish_reason"]) for c in found]


@pytest.mark.parametrize(
    "asked",
    [
        {"temperature": 0, "max_tokens": 60},
        {"temperature": 0, "max_tokens": 5},
        {"temperature": 0, "stop": ["running requests"]},
        {"temperature": 0, "stop": ["DRAINED"], "max_tokens": 60},
        {"temperature": 1.0, "seed": 7, "max_tokens": 40},
        {"temperature": 1.0, "seed": -7, "max_tokens": 40, "top_p": 0.9, "top_k": 20},
        {"temperature": 1.0, "seed": 7, "max_tokens": 40, "n": 3},
        {"temperature": 1.0, "seed": 3, "max_tokens": 40, "presence_penalty": 1.5, "frequency_penalty": 0.5},
        {"temperature": 0, "max_tokens": 60, "response_format": FORMAT},
    ],
)  # fmt: skip
def test_a_conversation_has_the_same_answer(shared: Deployment, ours: str, asked: dict[str, Any]) -> None:
    theirs = choices(chat(shared.url, QUESTION, **asked))
    assert theirs == choices(chat(ours, QUESTION, **asked))
    assert all(text for text, _ in theirs)


@pytest.mark.parametrize(
    "asked",
    [
        {"max_tokens": 30, "min_tokens": 30},
        {"max_tokens": 30, "ignore_eos": True},
        {"max_tokens": 20, "repetition_penalty": 1.3},
        {"max_tokens": 20, "guided_regex": "[ab]{4}"},
        {"max_tokens": 20, "guided_choice": ["one", "two"]},
        {"max_tokens": 20, "prompt": [277, 308, 584]},
    ],
)
def test_a_completion_has_the_same_text(shared: Deployment, ours: str, asked: dict[str, Any]) -> None:
    given = {"prompt": "Enginewire is", **asked}
    # Our API wants guides in vLLM's newer form.
    mine = {key: value for key, value in given.items() if not key.startswith("guided_")}
    if guide := {
        key.removeprefix("guided_"): value for key, value in given.items() if key.startswith("guided_")
    }:
        mine["structured_outputs"] = guide
    assert choices(complete(shared.url, **given)) == choices(complete(ours, **mine))


def test_log_probabilities_are_those_of_the_engine(shared: Deployment, ours: str) -> None:
    asked = {"temperature": 0, "max_tokens": 8, "logprobs": True, "top_logprobs": 3}

    def rows(url: str) -> list[Any]:
        found = chat(url, QUESTION, **asked).json()["choices"][0]["logprobs"]["content"]
        return [
            (
                row["token"],
                pytest.approx(row["logprob"], abs=1e-4),
                [top["token"] for top in row["top_logprobs"]],
            )
            for row in found
        ]

    theirs = rows(shared.url)
    assert [(token, tops) for token, _, tops in theirs] == [(token, tops) for token, _, tops in rows(ours)]
    assert [logprob.expected for _, logprob, _ in rows(ours)] == [logprob for _, logprob, _ in theirs]
    assert len(theirs) == 8


def test_usage_counts_cached_tokens_and_all_choices(shared: Deployment) -> None:
    prompt = "one two three four " * 20
    first, second = (
        complete(shared.url, prompt=prompt, max_tokens=4, n=2, temperature=1.0, seed=1).json()["usage"]
        for _ in "ab"
    )
    assert first["completion_tokens"] == second["completion_tokens"] == 8
    assert second["prompt_tokens_details"]["cached_tokens"] > 0


def test_a_required_tool_is_called(shared: Deployment) -> None:
    """The frontend makes a grammar of it, which the engine follows."""
    asked = {"temperature": 0, "max_tokens": 200, "tools": [TOOL], "tool_choice": "required"}
    message = chat(shared.url, QUESTION, **asked).json()["choices"][0]["message"]
    (call,) = message["tool_calls"]
    assert call["function"]["name"] == "drain"
    assert isinstance(json.loads(call["function"]["arguments"]), dict)


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"prompt": [5] * 2000}, "token_ids"),
        ({"prompt": "x", "guided_regex": "[a"}, "guided_decoding"),
        (
            {"prompt": "x", "guided_json": {"type": "object"}, "guided_whitespace_pattern": "x"},
            "whitespace_pattern",
        ),
    ],
)
def test_what_the_engine_refuses_is_told_with_the_field(
    shared: Deployment, asked: dict[str, Any], named: str
) -> None:
    response = complete(shared.url, **asked)
    assert response.status_code == 400
    assert named in response.json()["message"]
