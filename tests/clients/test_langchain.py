"""LangChain's `ChatOpenAI`, through chat and through responses."""

from __future__ import annotations

import pytest
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

from tests.clients.asked import (
    ANSWER,
    CITIES,
    KEY,
    MODEL,
    QUESTION,
    WEATHER_ANSWER,
    WEATHER_ARGUMENTS,
    WEATHER_QUESTION,
    Place,
    get_weather,
)

WEATHER = tool(get_weather)


@pytest.fixture(params=[False, True], ids=["chat", "responses"])
def llm(request: pytest.FixtureRequest, base_url: str) -> ChatOpenAI:
    return ChatOpenAI(
        model=MODEL,
        base_url=base_url,
        api_key=KEY,
        max_retries=0,
        temperature=0,
        use_responses_api=request.param,
    )


def test_text_in_one_piece_and_as_a_stream(llm: ChatOpenAI) -> None:
    answer = llm.invoke(QUESTION)
    assert answer.text.startswith(ANSWER)
    assert "".join(chunk.text for chunk in llm.stream(QUESTION)) == answer.text


@pytest.mark.parametrize("options", [{}, {"strict": True}], ids=["free", "strict"])
def test_a_tool_is_called_and_its_result_is_said(llm: ChatOpenAI, options: dict[str, object]) -> None:
    agent = llm.bind_tools([WEATHER], **options)
    said = [HumanMessage(WEATHER_QUESTION)]
    call = agent.invoke(said)
    assert [(each["name"], each["args"]) for each in call.tool_calls] == [("get_weather", WEATHER_ARGUMENTS)]
    result = WEATHER.invoke(call.tool_calls[0])
    assert isinstance(result, ToolMessage)
    assert agent.invoke([*said, call, result]).text == WEATHER_ANSWER


def test_any_tool_is_called(llm: ChatOpenAI) -> None:
    answer = llm.bind_tools([WEATHER], tool_choice="any").invoke(QUESTION)
    assert isinstance(answer, AIMessage)
    assert {call["name"] for call in answer.tool_calls} == {"get_weather"}
    assert all(call["args"]["city"] in CITIES for call in answer.tool_calls)


def test_a_call_as_a_stream(llm: ChatOpenAI) -> None:
    first, *chunks = llm.bind_tools([WEATHER]).stream(WEATHER_QUESTION)
    whole = sum(chunks, first)
    assert isinstance(whole, AIMessageChunk)
    assert [(each["name"], each["args"]) for each in whole.tool_calls] == [("get_weather", WEATHER_ARGUMENTS)]


def test_structured_output_by_function_calling(llm: ChatOpenAI) -> None:
    assert isinstance(llm.with_structured_output(Place, method="function_calling").invoke(QUESTION), Place)
