"""Tools through everything: the demo model in its server, a backend over HTTP, and OpenAI's SDK."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import jsonschema
import pytest
from openai import AsyncOpenAI, BadRequestError

from enginewire.backend.backend import Backend
from enginewire.backend.engines.connection.client import EngineClient
from enginewire.backend.frontends.text_backend import TextBackend
from enginewire.backend.prompting.tokenizer import BackendTokenizer
from tests.backend.frontends.http_api.serving import sdk

PLACE = {"type": "object", "properties": {"city": {"enum": ["Kyoto", "京都"]}}, "required": ["city"]}
# References stay inside of the tool's own schema, wherever that is put.
TREE = {
    "type": "object",
    "properties": {"root": {"$ref": "#/$defs/node"}},
    "required": ["root"],
    "additionalProperties": False,
    "$defs": {
        "node": {
            "type": "object",
            "properties": {"size": {"enum": [1, 2]}},
            "required": ["size"],
            "additionalProperties": False,
        }
    },
}
SCHEMAS = {"go_to": PLACE, "plant": TREE}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": schema}} for name, schema in SCHEMAS.items()
]


@pytest.fixture
async def client(demo_target: str) -> AsyncIterator[AsyncOpenAI]:
    async with EngineClient(demo_target) as engine:
        await engine.wait_ready(120)
        tokenizer = BackendTokenizer.from_files(await engine.tokenizer_files())
        async with sdk(TextBackend(Backend(engine, tokenizer.vocabulary), tokenizer)) as client:
            yield client.with_options(timeout=120)


def asking(**more: object) -> dict[str, object]:
    messages = [{"role": "user", "content": "Where to?"}]
    return {"model": "builtin:demo", "messages": messages, "tools": TOOLS, "max_tokens": 400, **more}


@pytest.mark.parametrize("name", SCHEMAS)
async def test_a_named_function_is_called_with_what_it_takes(client: AsyncOpenAI, name: str) -> None:
    choice = {"type": "function", "function": {"name": name}}
    answer = await client.chat.completions.create(**asking(tool_choice=choice, n=2, temperature=1, seed=3))
    for each in answer.choices:
        assert each.finish_reason == "tool_calls"
        assert each.message.content is None
        [call] = each.message.tool_calls or []
        assert call.function.name == name
        jsonschema.validate(json.loads(call.function.arguments), SCHEMAS[name])


@pytest.mark.parametrize("seed", range(4))
async def test_a_required_call_is_one_of_the_functions_and_streams_the_same(
    client: AsyncOpenAI, seed: int
) -> None:
    asked = asking(tool_choice="required", parallel_tool_calls=False, temperature=1.5, seed=seed)
    answer = await client.chat.completions.create(**asked)
    [call] = answer.choices[0].message.tool_calls or []
    jsonschema.validate(json.loads(call.function.arguments), SCHEMAS[call.function.name])
    async with client.chat.completions.stream(**asked) as stream:
        streamed = await stream.get_final_completion()
    [again] = streamed.choices[0].message.tool_calls or []
    assert (again.function.name, again.function.arguments) == (call.function.name, call.function.arguments)
    assert answer.choices[0].finish_reason == streamed.choices[0].finish_reason == "tool_calls"


async def test_a_tool_is_called_unasked_and_its_result_is_said(client: AsyncOpenAI) -> None:
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    tools = [{"type": "function", "function": {"name": "get_weather", "parameters": parameters}}]
    messages = [{"role": "user", "content": "What is the weather in Kyoto?"}]
    asked = asking(messages=messages, tools=tools, tool_choice="auto", temperature=0)
    answer = (await client.chat.completions.create(**asked)).choices[0]
    assert answer.finish_reason == "tool_calls"
    [call] = answer.message.tool_calls or []
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Kyoto"})
    messages.append(answer.message.model_dump(exclude_none=True))
    messages.append({"role": "tool", "tool_call_id": call.id, "content": "It rains in Kyoto."})
    last = (await client.chat.completions.create(**asked)).choices[0]
    assert (last.finish_reason, last.message.content) == ("stop", "It rains in Kyoto.")


async def test_strict_tools_leave_text_free(client: AsyncOpenAI) -> None:
    strict = [{"type": "function", "function": {**tool["function"], "strict": True}} for tool in TOOLS]
    answer = await client.chat.completions.create(
        **asking(messages=[{"role": "user", "content": "What does Drain do?"}], tools=strict)
    )
    assert (answer.choices[0].message.content or "").startswith("Drain stops new work")


async def test_a_format_beside_tools_is_kept_where_none_is_called(client: AsyncOpenAI) -> None:
    schema = {"type": "object", "properties": {"ready": {"type": "boolean"}}, "required": ["ready"]}
    form = {
        "type": "json_schema",
        "json_schema": {"name": "a", "schema": schema | {"additionalProperties": False}},
    }
    answer = await client.chat.completions.create(**asking(response_format=form, temperature=0))
    message = answer.choices[0].message
    if message.tool_calls:
        assert {call.function.name for call in message.tool_calls} <= set(SCHEMAS)
    else:
        assert json.loads(message.content or "").keys() == {"ready"}


async def test_a_function_whose_schema_is_none_is_refused_with_the_tools(client: AsyncOpenAI) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "nothing"}}}]
    with pytest.raises(BadRequestError) as refusal:
        await client.chat.completions.create(**asking(tools=tools, tool_choice="required"))
    assert refusal.value.param == "tools"
