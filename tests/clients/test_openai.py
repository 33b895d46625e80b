"""OpenAI's SDK, in the major versions that the table names."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from openai import NotFoundError, OpenAI

from tests.clients.asked import (
    ANSWER,
    CITIES,
    KEY,
    MODEL,
    PARAMETERS,
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

SAID = [{"role": "user", "content": QUESTION}]
ASKED = {"model": MODEL, "messages": SAID, "temperature": 0}
RESPONSES_TOOL = {"type": "function", "name": "get_weather", "parameters": PARAMETERS, "strict": True}


@pytest.fixture
def client(base_url: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=base_url, api_key=KEY, max_retries=0) as client:
        yield client


def test_models(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL


def test_chat_in_one_piece_and_as_a_stream_with_usage(client: OpenAI) -> None:
    whole = client.chat.completions.create(**ASKED)
    [choice] = whole.choices
    assert choice.finish_reason == "stop"
    assert (choice.message.content or "").startswith(ANSWER)
    chunks = list(
        client.chat.completions.create(**ASKED, stream=True, stream_options={"include_usage": True})
    )
    streamed = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert streamed == choice.message.content
    assert chunks[-1].usage is not None
    assert whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens > 1


def test_an_unknown_model_is_not_found(client: OpenAI) -> None:
    with pytest.raises(NotFoundError):
        client.chat.completions.create(**{**ASKED, "model": "other"})


@pytest.mark.parametrize("tool", [TOOL, STRICT_TOOL], ids=["free", "strict"])
def test_a_tool_is_called_and_its_result_is_said(client: OpenAI, tool: dict[str, object]) -> None:
    messages: list[object] = [{"role": "user", "content": WEATHER_QUESTION}]
    asked = {"model": MODEL, "messages": messages, "tools": [tool], "temperature": 0}
    answer = client.chat.completions.create(**asked).choices[0]
    assert answer.finish_reason == "tool_calls"
    [call] = answer.message.tool_calls or []
    assert json.loads(call.function.arguments) == WEATHER_ARGUMENTS
    messages.append(answer.message)
    messages.append({"role": "tool", "tool_call_id": call.id, "content": WEATHER_ANSWER})
    assert client.chat.completions.create(**asked).choices[0].message.content == WEATHER_ANSWER


def test_a_required_tool_is_called(client: OpenAI) -> None:
    answer = client.chat.completions.create(**ASKED, tools=[TOOL], tool_choice="required", max_tokens=200)
    calls = answer.choices[0].message.tool_calls or []
    assert {call.function.name for call in calls} == {"get_weather"}
    assert all(json.loads(call.function.arguments)["city"] in CITIES for call in calls)


def test_a_json_object(client: OpenAI) -> None:
    asked = {**ASKED, "response_format": {"type": "json_object"}, "max_tokens": 400}
    answer = client.chat.completions.create(**asked).choices[0]
    assert answer.finish_reason == "stop"
    assert isinstance(json.loads(answer.message.content or ""), dict)


def test_completions(client: OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt=QUESTION, temperature=0, max_tokens=20)
    assert ANSWER in answer.choices[0].text
    pieces = client.completions.create(
        model=MODEL, prompt=QUESTION, temperature=0, max_tokens=20, stream=True
    )
    assert "".join(piece.choices[0].text for piece in pieces) == answer.choices[0].text


def test_responses_in_one_piece_and_as_a_stream(client: OpenAI) -> None:
    answer = client.responses.create(model=MODEL, input=QUESTION, temperature=0)
    assert answer.output_text.startswith(ANSWER)
    events = list(client.responses.create(model=MODEL, input=QUESTION, temperature=0, stream=True))
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == answer.output_text
    assert events[-1].type == "response.completed"


def test_responses_with_a_tool_as_a_stream(client: OpenAI) -> None:
    said: list[object] = [{"role": "user", "content": WEATHER_QUESTION}]
    asked = {"model": MODEL, "input": said, "tools": [RESPONSES_TOOL], "temperature": 0}
    with client.responses.stream(**asked) as stream:
        answer = stream.get_final_response()
    [call] = [item for item in answer.output if item.type == "function_call"]
    assert (call.name, json.loads(call.arguments)) == ("get_weather", WEATHER_ARGUMENTS)
    said += [item.model_dump(exclude_none=True) for item in answer.output]
    said.append({"type": "function_call_output", "call_id": call.call_id, "output": WEATHER_ANSWER})
    with client.responses.stream(**asked) as stream:
        assert stream.get_final_response().output_text == WEATHER_ANSWER


def test_parse_of_chat_and_of_responses(client: OpenAI) -> None:
    chat = client.chat.completions.parse(**ASKED, response_format=Place)
    assert isinstance(chat.choices[0].message.parsed, Place)
    answer = client.responses.parse(model=MODEL, input=QUESTION, text_format=Place)
    assert isinstance(answer.output_parsed, Place)


def test_embeddings(encoder: str, embeddings_url: str) -> None:
    with OpenAI(base_url=embeddings_url, api_key=KEY, max_retries=0) as client:
        answer = client.embeddings.create(model=encoder, input=SENTENCES)
    assert similarity([each.embedding for each in answer.data]) == pytest.approx(SIMILARITY, abs=1e-3)
