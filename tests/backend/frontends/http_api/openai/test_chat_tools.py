from __future__ import annotations

import json

import pytest
from openai import AsyncOpenAI, BadRequestError

from enginewire.backend.frontends.text_backend import TextBackend
from tests.backend.frontends.conftest import StartBackend
from tests.backend.frontends.http_api.openai.echoing import HERMES, LAST_MESSAGE, with_template
from tests.backend.frontends.http_api.serving import sdk

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
TIME = {"type": "function", "function": {"name": "get_time"}}
TWO_CALLS = (
    "Let me see.\n"
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "京都"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "get_time"}\n</tool_call>'
)


@pytest.fixture
def hermes_backend(text_backend: TextBackend) -> TextBackend:
    return with_template(text_backend, HERMES + LAST_MESSAGE)


def saying(text: str, **more: object) -> dict[str, object]:
    return {
        "model": "mocker",
        "messages": [{"role": "user", "content": text}],
        "tools": [WEATHER, TIME],
        **more,
    }


async def test_calls_are_told_apart_from_text(hermes_backend: TextBackend) -> None:
    async with sdk(hermes_backend) as client:
        answer = await client.chat.completions.create(**saying(TWO_CALLS))
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Let me see."
    calls = choice.message.tool_calls or []
    assert [(call.type, call.function.name) for call in calls] == [
        ("function", "get_weather"),
        ("function", "get_time"),
    ]
    assert [json.loads(call.function.arguments) for call in calls] == [{"city": "京都"}, {}]
    assert len({call.id for call in calls}) == 2
    assert all(call.id.startswith("call_") for call in calls)


async def test_a_stream_tells_name_and_id_first_and_the_arguments_in_pieces(
    hermes_backend: TextBackend,
) -> None:
    async with sdk(hermes_backend) as client:
        stream = await client.chat.completions.create(**saying(TWO_CALLS, stream=True))
        choices = [choice async for chunk in stream for choice in chunk.choices]
    assert "".join(choice.delta.content or "" for choice in choices) == "Let me see."
    assert [choice.finish_reason for choice in choices if choice.finish_reason] == ["tool_calls"]
    pieces = [piece for choice in choices for piece in choice.delta.tool_calls or ()]
    named = [piece for piece in pieces if piece.id]
    assert [(piece.index, piece.function.name, piece.type) for piece in named] == [
        (0, "get_weather", "function"),
        (1, "get_time", "function"),
    ]
    assert all(piece.function.name is None for piece in pieces if not piece.id)
    arguments = ["".join(piece.function.arguments for piece in pieces if piece.index == i) for i in (0, 1)]
    assert [json.loads(each) for each in arguments] == [{"city": "京都"}, {}]
    assert [piece.index for piece in pieces] == sorted(piece.index for piece in pieces)
    assert all(choice.delta.model_dump(exclude_none=True) for choice in choices[:-1])


async def test_the_sdk_joins_a_stream_of_calls(hermes_backend: TextBackend) -> None:
    async with (
        sdk(hermes_backend) as client,
        client.chat.completions.stream(**saying(TWO_CALLS)) as stream,
    ):
        answer = await stream.get_final_completion()
    calls = answer.choices[0].message.tool_calls or []
    assert [json.loads(call.function.arguments) for call in calls] == [{"city": "京都"}, {}]


async def test_every_choice_has_calls_of_its_own(start_backend: StartBackend) -> None:
    backend = with_template((await start_backend())[0], HERMES + LAST_MESSAGE)
    async with sdk(backend) as client:
        answer = await client.chat.completions.create(**saying(TWO_CALLS, n=2))
        stream = await client.chat.completions.create(**saying(TWO_CALLS, n=2, stream=True))
        choices = [choice async for chunk in stream for choice in chunk.choices]
    ids = [call.id for choice in answer.choices for call in choice.message.tool_calls or ()]
    assert len(set(ids)) == 4
    named = [
        (choice.index, piece.index)
        for choice in choices
        for piece in choice.delta.tool_calls or ()
        if piece.id
    ]
    assert sorted(named) == [(0, 0), (0, 1), (1, 0), (1, 1)]


async def test_one_call_at_most_when_calls_are_not_to_be_parallel(hermes_backend: TextBackend) -> None:
    async with sdk(hermes_backend) as client:
        answer = await client.chat.completions.create(**saying(TWO_CALLS, parallel_tool_calls=False))
    assert [call.function.name for call in answer.choices[0].message.tool_calls or ()] == ["get_weather"]


@pytest.mark.parametrize("more", [{"tool_choice": "none"}, {"tools": []}])
async def test_without_tools_to_call_everything_is_text(hermes_backend: TextBackend, more) -> None:
    async with sdk(hermes_backend) as client:
        answer = await client.chat.completions.create(**saying(TWO_CALLS, **more))
    assert answer.choices[0].message.content == TWO_CALLS
    assert answer.choices[0].message.tool_calls is None
    assert answer.choices[0].finish_reason == "stop"


async def test_an_answer_that_is_cut_off_in_a_call_says_so(hermes_backend: TextBackend) -> None:
    async with sdk(hermes_backend) as client:
        answer = await client.chat.completions.create(**saying(TWO_CALLS, max_tokens=70))
    assert answer.choices[0].finish_reason == "length"
    [call] = answer.choices[0].message.tool_calls or []
    assert call.function.name == "get_weather"


async def test_a_conversation_with_calls_and_results_is_shown_to_the_template(
    text_backend: TextBackend,
) -> None:
    template = (
        "{% for tool in tools %}[{{ tool.function.name }}]{% endfor %}"
        "{% for m in messages %}{{ m.role }}:{{ m.content }}"
        "{% for call in m.tool_calls %}({{ call.id }} {{ call.function.name }} "
        "{{ call.function.arguments | tojson }}){% endfor %}"
        "{% if m.role == 'tool' %}<{{ m.tool_call_id }}>{% endif %};{% endfor %}"
    )
    call = {
        "id": "c1",
        "type": "function",
        "function": {"name": "get_weather", "arguments": '{"city":"京都"}'},
    }
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "sunny"}]},
    ]
    async with sdk(with_template(text_backend, template)) as client:
        answer = await client.chat.completions.create(
            model="mocker", messages=messages, tools=[WEATHER, TIME]
        )
    assert answer.choices[0].message.content == (
        '[get_weather][get_time]user:hi;assistant:(c1 get_weather {"city": "京都"});tool:sunny<c1>;'
    )


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"tools": {}}, "tools"),
        ({"tools": [7]}, "tools[0]"),
        ({"tools": [WEATHER] * 513}, "tools"),
        ({"tools": [{"type": "custom"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        (
            {"tools": [{"type": "function", "function": {"name": "a", "parameters": []}}]},
            "tools[0].function.parameters",
        ),
        ({"tools": [TIME, TIME]}, "tools[1].function.name"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "any"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice.function.name"),
        ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice"),
        ({"parallel_tool_calls": 1}, "parallel_tool_calls"),
        # The mocker follows no grammar.
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "get_time"}}}, "tool_choice"),
        (
            {"tools": [WEATHER, {"type": "function", "function": {"name": "a", "strict": True}}]},
            "tools[1].function.strict",
        ),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"structured_outputs": {"regex": "a"}}, "structured_outputs.regex"),
        (
            {"messages": [{"role": "user", "content": "", "tool_calls": [{}]}]},
            "messages[0].tool_calls[0].function",
        ),
        (
            {
                "messages": [
                    {"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": 1}}]}
                ]
            },
            "messages[0].tool_calls[0].function.name",
        ),
    ],
)
async def test_what_is_wrong_with_tools_is_a_bad_request_with_its_field(
    shared_sdk_of_hermes: AsyncOpenAI, body: dict[str, object], param: str
) -> None:
    with pytest.raises(BadRequestError) as refusal:
        await shared_sdk_of_hermes.chat.completions.create(**saying("x", extra_body=body))
    again = await shared_sdk_of_hermes.chat.completions.create(**saying("x"))
    assert refusal.value.param == param
    assert again.choices[0].message.content == "x"


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({}, "tools"),
        (
            {"tools": [], "messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "a"}}]}]},
            "messages[0].tool_calls",
        ),
        ({"tools": [], "messages": [{"role": "tool", "content": "a"}]}, "messages[0].role"),
    ],
)
async def test_a_template_that_does_not_show_tools_refuses_them(text_backend, more, param) -> None:
    async with sdk(text_backend) as client:
        with pytest.raises(BadRequestError) as refusal:
            await client.chat.completions.create(**saying("x", **more))
    assert refusal.value.param == param


async def test_a_format_that_nobody_reads_needs_the_servers_word(text_backend: TextBackend) -> None:
    backend = with_template(text_backend, "{# <|channel|> #}{{ tools and '' }}" + LAST_MESSAGE)
    text = '{"name": "get_time", "parameters": {}}'
    async with sdk(backend) as client:
        with pytest.raises(BadRequestError, match="--tool-call-parser"):
            await client.chat.completions.create(**saying(text))
    async with sdk(backend, tool_call_parser="json") as client:
        answer = await client.chat.completions.create(**saying(text))
    assert [call.function.name for call in answer.choices[0].message.tool_calls or ()] == ["get_time"]
