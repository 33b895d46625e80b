"""Pydantic AI: agents that return text, models of pydantic, and what tools say."""

from __future__ import annotations

import pytest
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.messages import ToolCallPart
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

from tests.clients.asked import (
    ANSWER,
    KEY,
    MODEL,
    QUESTION,
    WEATHER_ANSWER,
    WEATHER_ARGUMENTS,
    WEATHER_QUESTION,
    Place,
    get_weather,
)

COLD = {"temperature": 0, "max_tokens": 400}


@pytest.fixture
def chat(base_url: str) -> OpenAIChatModel:
    return OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=base_url, api_key=KEY), settings=COLD)


@pytest.fixture
def responses(base_url: str) -> OpenAIResponsesModel:
    provider = OpenAIProvider(base_url=base_url, api_key=KEY)
    return OpenAIResponsesModel(MODEL, provider=provider, settings=COLD)


async def test_text_in_one_piece_and_as_a_stream(chat: OpenAIChatModel) -> None:
    agent = Agent(chat)
    answer = (await agent.run(QUESTION)).output
    assert answer.startswith(ANSWER)
    async with agent.run_stream(QUESTION) as streamed:
        assert await streamed.get_output() == answer


async def test_an_agent_calls_a_tool_and_says_its_result(chat: OpenAIChatModel) -> None:
    answer = await Agent(chat, tools=[get_weather]).run(WEATHER_QUESTION)
    parts = [part for message in answer.all_messages() for part in message.parts]
    calls = [part.args_as_dict() for part in parts if isinstance(part, ToolCallPart)]
    assert calls == [WEATHER_ARGUMENTS]
    assert answer.output == WEATHER_ANSWER


async def test_its_default_output(chat: OpenAIChatModel) -> None:
    assert isinstance((await Agent(chat, output_type=Place).run(QUESTION)).output, Place)


async def test_its_default_output_beside_a_tool(chat: OpenAIChatModel) -> None:
    agent = Agent(chat, output_type=Place, tools=[get_weather])
    assert isinstance((await agent.run(QUESTION)).output, Place)


async def test_native_output(chat: OpenAIChatModel) -> None:
    assert isinstance((await Agent(chat, output_type=NativeOutput(Place)).run(QUESTION)).output, Place)


async def test_its_default_output_through_responses(responses: OpenAIResponsesModel) -> None:
    assert isinstance((await Agent(responses, output_type=Place).run(QUESTION)).output, Place)
