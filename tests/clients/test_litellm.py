"""litellm, by each of the three ways that it has to a server like ours."""

from __future__ import annotations

import json

import litellm
import pytest

from tests.clients.asked import (
    ANSWER,
    CITIES,
    KEY,
    MODEL,
    QUESTION,
    SENTENCES,
    SIMILARITY,
    STRICT_TOOL,
    TOOL,
    WEATHER_ANSWER,
    WEATHER_ARGUMENTS,
    WEATHER_QUESTION,
    Place,
    similarity,
)

litellm.telemetry = False
SAID = [{"role": "user", "content": QUESTION}]
NAMED = {"type": "function", "function": {"name": "get_weather"}}
OPENAI = ["openai", "hosted_vllm"]
WAYS = [*OPENAI, "anthropic"]


@pytest.fixture
def asked(way: str, address: str, base_url: str) -> dict[str, object]:
    place = address if way == "anthropic" else base_url
    return {"model": f"{way}/{MODEL}", "api_base": place, "api_key": KEY, "max_tokens": 200, "temperature": 0}


@pytest.mark.parametrize("way", WAYS)
def test_chat_in_one_piece_and_as_a_stream(asked: dict[str, object]) -> None:
    answer = litellm.completion(**asked, messages=SAID).choices[0]
    assert answer.finish_reason == "stop"
    assert answer.message.content.startswith(ANSWER)
    chunks = litellm.completion(**asked, messages=SAID, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == answer.message.content


@pytest.mark.parametrize("tool", [TOOL, STRICT_TOOL], ids=["free", "strict"])
@pytest.mark.parametrize("way", WAYS)
def test_a_tool_is_called_and_its_result_is_said(asked: dict[str, object], tool: dict[str, object]) -> None:
    messages: list[object] = [{"role": "user", "content": WEATHER_QUESTION}]
    answer = litellm.completion(**asked, messages=messages, tools=[tool]).choices[0]
    assert answer.finish_reason == "tool_calls"
    [call] = answer.message.tool_calls
    assert json.loads(call.function.arguments) == WEATHER_ARGUMENTS
    messages.append(answer.message.model_dump(exclude_none=True))
    messages.append({"role": "tool", "tool_call_id": call.id, "content": WEATHER_ANSWER})
    last = litellm.completion(**asked, messages=messages, tools=[tool]).choices[0]
    assert last.message.content == WEATHER_ANSWER


@pytest.mark.parametrize("choice", ["required", NAMED], ids=["required", "named"])
@pytest.mark.parametrize("way", WAYS)
def test_a_call_that_is_asked_for_comes_in_one_piece_and_as_a_stream(
    asked: dict[str, object], choice: object
) -> None:
    asked |= {"messages": SAID, "tools": [TOOL], "tool_choice": choice}
    [call, *_] = litellm.completion(**asked).choices[0].message.tool_calls
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments)["city"] in CITIES
    chunks = list(litellm.completion(**asked, stream=True))
    [streamed, *_] = litellm.stream_chunk_builder(chunks).choices[0].message.tool_calls
    assert (streamed.function.name, streamed.function.arguments) == (
        call.function.name,
        call.function.arguments,
    )


@pytest.mark.parametrize("way", OPENAI)
def test_json(asked: dict[str, object]) -> None:
    answer = litellm.completion(**asked, messages=SAID, response_format=Place).choices[0]
    Place.model_validate_json(answer.message.content)
    answer = litellm.completion(**asked, messages=SAID, response_format={"type": "json_object"}).choices[0]
    assert isinstance(json.loads(answer.message.content), dict)


@pytest.mark.parametrize("way", OPENAI)
def test_completions(asked: dict[str, object]) -> None:
    assert ANSWER in litellm.text_completion(**asked, prompt=QUESTION).choices[0].text


@pytest.mark.parametrize("way", OPENAI)
def test_responses(asked: dict[str, object]) -> None:
    asked["max_output_tokens"] = asked.pop("max_tokens")
    answer = litellm.responses(**asked, input=QUESTION)
    assert answer.output[0].content[0].text.startswith(ANSWER)


@pytest.mark.parametrize("way", WAYS)
def test_an_unknown_model_is_not_found(asked: dict[str, object], way: str) -> None:
    with pytest.raises(litellm.NotFoundError):
        litellm.completion(**{**asked, "model": f"{way}/other"}, messages=SAID)


@pytest.mark.parametrize("way", OPENAI)
def test_embeddings(way: str, encoder: str, embeddings_url: str) -> None:
    answer = litellm.embedding(
        model=f"{way}/{encoder}", input=SENTENCES, api_base=embeddings_url, api_key=KEY
    )
    assert similarity([each["embedding"] for each in answer.data]) == pytest.approx(SIMILARITY, abs=1e-3)
