"""Tools in the Responses API, through OpenAI's own SDK."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai import AsyncOpenAI, BadRequestError
from openai.types.responses import ResponseFunctionToolCall

from enginewire.backend.frontends.text_backend import TextBackend
from tests.backend.frontends.http_api.openai.echoing import HERMES, LAST_MESSAGE, with_template
from tests.backend.frontends.http_api.openai.test_chat_tools import TWO_CALLS
from tests.backend.frontends.http_api.serving import sdk

WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "strict": None,
}
TIME = {"type": "function", "name": "get_time"}
# Everything that a template can see of a conversation.
ALL_MESSAGES = (
    "{# <tool_call> #}{% for tool in tools %}[{{ tool.function.name }}]{% endfor %}"
    "{% for m in messages %}{{ m.role }}:{{ m.reasoning_content }}:{{ m.content }}"
    "{% for call in m.tool_calls %}({{ call.id }} {{ call.function.name }} "
    "{{ call.function.arguments | tojson }}){% endfor %}"
    "{% if m.role == 'tool' %}<{{ m.tool_call_id }}>{% endif %};{% endfor %}"
)


@pytest.fixture
def hermes_backend(text_backend: TextBackend) -> TextBackend:
    return with_template(text_backend, HERMES + LAST_MESSAGE)


def saying(text: str, **more: object) -> dict[str, Any]:
    return {"model": "mocker", "input": text, "tools": [WEATHER, TIME], **more}


async def test_calls_are_items_behind_the_message(hermes_backend: TextBackend) -> None:
    async with sdk(hermes_backend) as client:
        answer = await client.responses.create(**saying(TWO_CALLS, parallel_tool_calls=True))
    message, *calls = answer.output
    assert answer.output_text == "Let me see."
    assert [call.type for call in calls] == ["function_call"] * 2
    assert [(call.name, json.loads(call.arguments)) for call in calls] == [
        ("get_weather", {"city": "京都"}),
        ("get_time", {}),
    ]
    assert all(call.call_id.startswith("call_") and call.status == "completed" for call in calls)
    assert len({message.id, *(call.id for call in calls), *(call.call_id for call in calls)}) == 5
    assert [tool.name for tool in answer.tools] == ["get_weather", "get_time"]
    assert (answer.status, answer.tool_choice) == ("completed", "auto")


@pytest.mark.parametrize("said", [TWO_CALLS, f"{TWO_CALLS}\nThat is all.", TWO_CALLS.partition("\n")[2]])
async def test_a_stream_has_the_items_of_the_whole_answer(hermes_backend: TextBackend, said: str) -> None:
    async with sdk(hermes_backend) as client:
        whole = await client.responses.create(**saying(said))
        events = [event async for event in await client.responses.create(**saying(said, stream=True))]
    last = events[-1].response

    def calls_of(answer: Any) -> list[tuple[str, str]]:
        called = [item for item in answer.output if isinstance(item, ResponseFunctionToolCall)]
        return [(item.name, item.arguments) for item in called]

    # What is said behind a call has a message of its own in a stream.
    assert (calls_of(last), last.output_text) == (calls_of(whole), whole.output_text)
    added = [event.item for event in events if event.type == "response.output_item.added"]
    done = [event.item for event in events if event.type == "response.output_item.done"]
    assert [item.id for item in added] == [item.id for item in done] == [item.id for item in last.output]
    assert [item.arguments for item in added if item.type == "function_call"] == ["", ""]
    arguments: dict[str, str] = {}
    for event in events:
        if event.type == "response.function_call_arguments.delta":
            arguments[event.item_id] = arguments.get(event.item_id, "") + event.delta
    ended = {e.item_id: e for e in events if e.type == "response.function_call_arguments.done"}
    calls = [item for item in last.output if item.type == "function_call"]
    assert arguments == {call.id: call.arguments for call in calls}
    assert {key: (e.name, e.arguments) for key, e in ended.items()} == {
        call.id: (call.name, call.arguments) for call in calls
    }
    assert [event.sequence_number for event in events] == list(range(len(events)))


async def test_the_sdk_joins_a_stream_of_calls(hermes_backend: TextBackend) -> None:
    async with sdk(hermes_backend) as client, client.responses.stream(**saying(TWO_CALLS)) as stream:
        answer = await stream.get_final_response()
    assert [item.name for item in answer.output[1:]] == ["get_weather", "get_time"]


async def test_calls_and_results_can_be_sent_back(text_backend: TextBackend) -> None:
    items = [
        {"role": "user", "content": "hi"},
        {
            "type": "reasoning",
            "id": "rs",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "Hm"}],
        },
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Wait."}]},
        {"type": "function_call", "call_id": "c1", "name": "get_weather", "arguments": '{"city": "京都"}'},
        {
            "type": "function_call",
            "call_id": "c2",
            "name": "get_time",
            "arguments": "{}",
            "status": "completed",
        },
        {"type": "function_call_output", "call_id": "c1", "output": "sunny"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "noon"}]},
        {"type": "function_call", "call_id": "c3", "name": "get_time", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c3", "output": "one"},
    ]
    async with sdk(with_template(text_backend, ALL_MESSAGES)) as client:
        answer = await client.responses.create(**saying("") | {"input": items})
    assert answer.output_text == (
        "[get_weather][get_time]user::hi;"
        'assistant:Hm:Wait.(c1 get_weather {"city": "京都"})(c2 get_time {});'
        "tool::sunny<c1>;tool::noon<c2>;assistant::(c3 get_time {});tool::one<c3>;"
    )


async def test_an_answer_that_is_cut_off_in_a_call_is_incomplete(hermes_backend: TextBackend) -> None:
    async with sdk(hermes_backend) as client:
        answer = await client.responses.create(**saying(TWO_CALLS, max_output_tokens=75))
    assert (answer.status, answer.output[-1].status) == ("incomplete", "incomplete")
    assert answer.output[-1].name == "get_weather"


CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"tools": {}}, "tools"),
        ({"tools": [7]}, "tools[0]"),
        ({"tools": [{"type": "mcp", "server_label": "a"}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "name": "a b"}]}, "tools[0].name"),
        ({"tools": [TIME, TIME]}, "tools[1].name"),
        ({"tools": [{"type": "function", "name": "f", "parameters": []}]}, "tools[0].parameters"),
        ({"tools": [TIME, WEATHER | {"strict": True}]}, "tools[1].strict"),
        ({"tool_choice": {"type": "web_search"}}, "tool_choice"),
        ({"tool_choice": {"type": "function", "name": "other"}}, "tool_choice.name"),
        # The mocker follows no grammar.
        ({"tool_choice": "required"}, "tool_choice"),
        ({"input": [{"type": "function_call_output", "output": "b"}]}, "input[0].call_id"),
        ({"input": [{"type": "function_call_output", "call_id": "a", "output": 3}]}, "input[0].output"),
        ({"input": [CALL | {"name": 3}]}, "input[0].name"),
        ({"input": [CALL | {"arguments": None}]}, "input[0].arguments"),
        ({"input": [{"type": "computer_call", "call_id": "a"}]}, "input[0].type"),
    ],
)
async def test_what_is_wrong_with_tools_is_a_bad_request_with_its_field(
    shared_sdk_of_hermes: AsyncOpenAI, body: dict[str, object], param: str
) -> None:
    with pytest.raises(BadRequestError) as refusal:
        await shared_sdk_of_hermes.responses.create(**saying("x", extra_body=body))
    assert refusal.value.param == param


async def test_a_template_that_does_not_show_calls_refuses_them(text_backend: TextBackend) -> None:
    async with sdk(with_template(text_backend, LAST_MESSAGE)) as client:
        with pytest.raises(BadRequestError) as refusal:
            await client.responses.create(model="mocker", input=[CALL])
    assert refusal.value.param == "input"
