"""Anthropic's SDK, whose API the same server speaks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from anthropic import Anthropic

from tests.clients.asked import (
    ANSWER,
    CITIES,
    KEY,
    MODEL,
    PARAMETERS,
    QUESTION,
    WEATHER_ANSWER,
    WEATHER_ARGUMENTS,
    WEATHER_QUESTION,
)

TOOLS = [{"name": "get_weather", "input_schema": PARAMETERS}]
ASKED = {
    "model": MODEL,
    "max_tokens": 200,
    # The SDK of this version has no argument for it.
    "extra_body": {"temperature": 0},
    "messages": [{"role": "user", "content": QUESTION}],
}


@pytest.fixture
def client(address: str) -> Iterator[Anthropic]:
    with Anthropic(base_url=address, api_key=KEY, max_retries=0) as client:
        yield client


def test_a_message_with_a_system_in_blocks_and_as_a_stream(client: Anthropic) -> None:
    asked = {**ASKED, "system": [{"type": "text", "text": "Answer briefly."}]}
    message = client.messages.create(**asked)
    [block] = message.content
    assert block.text.startswith(ANSWER)
    assert message.stop_reason == "end_turn"
    with client.messages.stream(**asked) as stream:
        assert "".join(stream.text_stream) == block.text


def test_a_stop_sequence(client: Anthropic) -> None:
    message = client.messages.create(**ASKED, stop_sequences=["wire "])
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "wire ")


def test_any_tool_is_called(client: Anthropic) -> None:
    message = client.messages.create(**ASKED, tools=TOOLS, tool_choice={"type": "any"})
    assert message.stop_reason == "tool_use"
    assert {(block.type, block.name) for block in message.content} == {("tool_use", "get_weather")}
    assert all(block.input["city"] in CITIES for block in message.content)


def test_a_tool_is_called_and_its_result_is_said(client: Anthropic) -> None:
    messages: list[object] = [{"role": "user", "content": WEATHER_QUESTION}]
    asked = {**ASKED, "messages": messages, "tools": TOOLS}
    with client.messages.stream(**asked) as stream:
        message = stream.get_final_message()
    assert message.stop_reason == "tool_use"
    [call] = [block for block in message.content if block.type == "tool_use"]
    assert call.input == WEATHER_ARGUMENTS
    result = {"type": "tool_result", "tool_use_id": call.id, "content": WEATHER_ANSWER}
    messages += [{"role": "assistant", "content": message.content}, {"role": "user", "content": [result]}]
    [block] = client.messages.create(**asked).content
    assert block.text == WEATHER_ANSWER
