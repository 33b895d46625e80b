"""LlamaIndex, with its classes for servers that are like OpenAI's."""

from __future__ import annotations

import pytest
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.llms import ChatMessage
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai_like import OpenAILike

from tests.clients.asked import (
    ANSWER,
    CITIES,
    KEY,
    MODEL,
    QUESTION,
    SENTENCES,
    SIMILARITY,
    WEATHER_ANSWER,
    WEATHER_ARGUMENTS,
    WEATHER_QUESTION,
    Place,
    get_weather,
    similarity,
)

SAID = [ChatMessage(role="user", content=QUESTION)]
TOOL = FunctionTool.from_defaults(get_weather)


@pytest.fixture
def llm(base_url: str) -> OpenAILike:
    return OpenAILike(
        model=MODEL,
        api_base=base_url,
        api_key=KEY,
        is_chat_model=True,
        is_function_calling_model=True,
        context_window=1024,
        max_tokens=200,
        max_retries=0,
        temperature=0,
    )


def test_chat_in_one_piece_and_as_a_stream(llm: OpenAILike) -> None:
    answer = llm.chat(SAID)
    assert str(answer.message.content).startswith(ANSWER)
    [*_, last] = llm.stream_chat(SAID)
    assert last.message.content == answer.message.content


def test_complete(llm: OpenAILike) -> None:
    assert ANSWER in llm.complete(QUESTION).text


def test_a_tool_is_called_in_one_piece_and_as_a_stream(llm: OpenAILike) -> None:
    answer = llm.chat_with_tools([TOOL], user_msg=WEATHER_QUESTION)
    [call] = llm.get_tool_calls_from_response(answer)
    assert (call.tool_name, call.tool_kwargs) == ("get_weather", WEATHER_ARGUMENTS)
    [*_, last] = llm.stream_chat_with_tools([TOOL], user_msg=WEATHER_QUESTION)
    [streamed] = llm.get_tool_calls_from_response(last)
    assert (streamed.tool_name, streamed.tool_kwargs) == (call.tool_name, call.tool_kwargs)


def test_a_required_tool_is_called(llm: OpenAILike) -> None:
    answer = llm.chat_with_tools([TOOL], user_msg=QUESTION, tool_required=True)
    calls = llm.get_tool_calls_from_response(answer)
    assert {call.tool_name for call in calls} == {"get_weather"}
    assert all(call.tool_kwargs["city"] in CITIES for call in calls)


async def test_an_agent_calls_a_tool_and_says_its_result(llm: OpenAILike) -> None:
    answer = await FunctionAgent(tools=[get_weather], llm=llm).run(WEATHER_QUESTION)
    assert [call.tool_kwargs for call in answer.tool_calls] == [WEATHER_ARGUMENTS]
    assert str(answer) == WEATHER_ANSWER


def test_structured_output(llm: OpenAILike) -> None:
    assert isinstance(llm.structured_predict(Place, PromptTemplate(QUESTION)), Place)
    assert isinstance(llm.as_structured_llm(Place).complete(QUESTION).raw, Place)


def test_embeddings_one_by_one_and_in_a_batch(encoder: str, embeddings_url: str) -> None:
    model = OpenAILikeEmbedding(model_name=encoder, api_base=embeddings_url, api_key=KEY)
    one_by_one = [model.get_text_embedding(sentence) for sentence in SENTENCES]
    batch = model.get_text_embedding_batch(SENTENCES)
    for vectors in (one_by_one, batch):
        assert similarity(vectors) == pytest.approx(SIMILARITY, abs=1e-3)
