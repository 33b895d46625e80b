"""OpenAI's Agents SDK, through responses."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from agents import Agent, ModelSettings, OpenAIResponsesModel, Runner, ToolCallItem, function_tool
from openai import AsyncOpenAI

from tests.clients.asked import (
    ANSWER,
    KEY,
    MODEL,
    QUESTION,
    WEATHER_ANSWER,
    WEATHER_ARGUMENTS,
    WEATHER_QUESTION,
    get_weather,
)


@pytest.fixture
async def model(base_url: str) -> AsyncIterator[OpenAIResponsesModel]:
    async with AsyncOpenAI(base_url=base_url, api_key=KEY, max_retries=0) as client:
        yield OpenAIResponsesModel(MODEL, client)


def agent(model: OpenAIResponsesModel, **given: object) -> Agent:
    return Agent("tried", model=model, model_settings=ModelSettings(temperature=0), **given)


async def test_text(model: OpenAIResponsesModel) -> None:
    assert (await Runner.run(agent(model), QUESTION)).final_output.startswith(ANSWER)


async def test_a_strict_tool_is_called_and_its_result_is_said(model: OpenAIResponsesModel) -> None:
    weather = function_tool(get_weather)
    assert weather.strict_json_schema
    run = await Runner.run(agent(model, tools=[weather]), WEATHER_QUESTION)
    [call] = [item.raw_item for item in run.new_items if isinstance(item, ToolCallItem)]
    assert call.name == "get_weather"
    assert WEATHER_ARGUMENTS["city"] in call.arguments
    assert run.final_output == WEATHER_ANSWER
