"""The API of Anthropic, in the shapes that its SDK reads.

What the SDK makes of them is in test_messages_sdk.py.
"""

from __future__ import annotations

import json

import httpx2
import pytest

from enginewire.backend.frontends.text_backend import TextBackend
from tests.backend.frontends.conftest import StartBackend
from tests.backend.frontends.http_api.openai.echoing import HERMES, LAST_MESSAGE, with_template
from tests.backend.frontends.http_api.openai.test_chat_tools import TWO_CALLS
from tests.backend.frontends.http_api.responses.test_response_tools import ALL_MESSAGES
from tests.backend.frontends.http_api.serving import client_of

WEATHER = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
TIME = {"type": "custom", "name": "get_time", "input_schema": {"type": "object"}}


@pytest.fixture
def hermes_backend(text_backend: TextBackend) -> TextBackend:
    return with_template(text_backend, HERMES + LAST_MESSAGE)


def saying(text: object, **more: object) -> dict[str, object]:
    messages = [{"role": "user", "content": text}]
    return {"model": "mocker", "max_tokens": 300, "messages": messages, **more}


async def events_of(client: httpx2.AsyncClient, body: dict[str, object]) -> list[dict[str, object]]:
    answer = await client.post("/v1/messages", json=body | {"stream": True})
    assert answer.headers["content-type"].startswith("text/event-stream")
    pairs = [event.split("\n") for event in answer.text.strip().split("\n\n")]
    events = [json.loads(data.removeprefix("data: ")) for _, data in pairs]
    assert [kind.removeprefix("event: ") for kind, _ in pairs] == [event["type"] for event in events]
    return events


def joined(events: list[dict[str, object]]) -> dict[str, object]:
    """The message that a stream tells, put together as the SDK does it."""
    first, *rest = events
    assert first["type"] == "message_start"
    message = dict(first["message"])
    content, inputs = [], {}
    for event in rest:
        match event["type"]:
            case "content_block_start":
                assert event["index"] == len(content)
                content.append(dict(event["content_block"]))
            case "content_block_delta":
                delta = dict(event["delta"])
                kind = delta.pop("type")
                if kind == "input_json_delta":
                    inputs[event["index"]] = inputs.get(event["index"], "") + delta["partial_json"]
                else:
                    key = kind.removesuffix("_delta")
                    content[event["index"]][key] += delta[key]
            case "content_block_stop":
                if event["index"] in inputs:
                    content[event["index"]]["input"] = json.loads(inputs[event["index"]])
            case "message_delta":
                message |= event["delta"] | {"usage": event["usage"]}
    assert rest[-1] == {"type": "message_stop"}
    return message | {"content": content}


def without_ids(message: dict[str, object]) -> dict[str, object]:
    content = [{key: value for key, value in block.items() if key != "id"} for block in message["content"]]
    return {key: value for key, value in message.items() if key != "id"} | {"content": content}


async def test_a_text_is_answered_by_a_message_of_one_block(text_backend: TextBackend) -> None:
    system = [{"type": "text", "text": "Be short.", "cache_control": {"type": "ephemeral"}}]
    async with client_of(text_backend) as client:
        body = saying([{"type": "text", "text": "東京"}], system=system, metadata={"user_id": "a"})
        answer = (await client.post("/v1/messages", json=body)).json()
        count = (await client.post("/v1/messages/count_tokens", json=body)).json()
        streamed = joined(await events_of(client, body))
    assert answer["id"].startswith("msg")
    text = "system: Be short.\nuser: 東京\nassistant: "
    assert without_ids(answer) == {
        "type": "message",
        "role": "assistant",
        "model": "mocker",
        "content": [{"type": "text", "text": text}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": answer["usage"],
    }
    usage = answer["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == len(text.encode())
    assert count == {"input_tokens": len(text.encode())}
    assert without_ids(streamed) | {"usage": 0} == without_ids(answer) | {"usage": 0}


async def test_a_stream_begins_with_the_length_of_the_prompt(text_backend: TextBackend) -> None:
    async with client_of(text_backend) as client:
        first, *_, last, _ = await events_of(client, saying("abc"))
    length = len("user: abc\nassistant: ")
    assert first["message"]["usage"] == {"input_tokens": length, "output_tokens": 0}
    assert last["usage"]["output_tokens"] == length + 1


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"stop_sequences": ["ser"]}, ("stop_sequence", "ser", "u")),
        ({"max_tokens": 3}, ("max_tokens", None, "use")),
    ],
)
async def test_why_an_answer_ended(
    text_backend: TextBackend, more: dict[str, object], reason: object
) -> None:
    async with client_of(text_backend) as client:
        answer = (await client.post("/v1/messages", json=saying("x", **more))).json()
        streamed = joined(await events_of(client, saying("x", **more)))
    for each in (answer, streamed):
        assert (each["stop_reason"], each["stop_sequence"], each["content"][0]["text"]) == reason


async def test_calls_are_blocks_behind_the_text(hermes_backend: TextBackend) -> None:
    async with client_of(hermes_backend) as client:
        body = saying(TWO_CALLS, tools=[WEATHER, TIME])
        answer = (await client.post("/v1/messages", json=body)).json()
        streamed = joined(await events_of(client, body))
        one = saying(
            TWO_CALLS, tools=[WEATHER], tool_choice={"type": "auto", "disable_parallel_tool_use": True}
        )
        single = (await client.post("/v1/messages", json=one)).json()
    text, *calls = answer["content"]
    assert text == {"type": "text", "text": "Let me see."}
    assert [(call["type"], call["name"], call["input"]) for call in calls] == [
        ("tool_use", "get_weather", {"city": "京都"}),
        ("tool_use", "get_time", {}),
    ]
    assert len({call["id"] for call in calls}) == 2
    assert answer["stop_reason"] == "tool_use"
    assert without_ids(streamed) | {"usage": 0} == without_ids(answer) | {"usage": 0}
    assert [block["type"] for block in single["content"]] == ["text", "tool_use"]


async def test_a_conversation_with_calls_and_results_is_shown_to_the_template(
    text_backend: TextBackend,
) -> None:
    call = {"type": "tool_use", "id": "c1", "name": "get_weather", "input": {"city": "京都"}}
    thought = {"type": "thinking", "thinking": "Hm", "signature": ""}
    result = {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "sunny"}]}
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": [thought, {"type": "text", "text": "Wait."}, call]},
        {"role": "user", "content": [result, {"type": "text", "text": "And?"}]},
        {"role": "user", "content": [result | {"content": "rain", "is_error": True}]},
    ]
    async with client_of(with_template(text_backend, ALL_MESSAGES)) as client:
        body = saying("", tools=[WEATHER], messages=messages)
        answer = (await client.post("/v1/messages", json=body)).json()
    assert answer["content"][0]["text"] == (
        '[get_weather]user::hi;assistant:Hm:Wait.(c1 get_weather {"city": "京都"});'
        "tool::sunny<c1>;user::And?;tool::rain<c1>;"
    )


@pytest.mark.parametrize("is_shown", [True, False])
async def test_thinking_is_a_block_before_the_text(text_backend: TextBackend, is_shown: bool) -> None:
    backend = with_template(text_backend, "{# <think> </think> #}" + LAST_MESSAGE)
    body = saying("<think>Hm</think>\n\nYes.", thinking={"type": "adaptive" if is_shown else "disabled"})
    async with client_of(backend) as client:
        answer = (await client.post("/v1/messages", json=body)).json()
        streamed = joined(await events_of(client, body))
    text = {"type": "text", "text": "Yes."}
    thought = {"type": "thinking", "thinking": "Hm", "signature": ""}
    assert answer["content"] == streamed["content"] == ([thought, text] if is_shown else [text])


async def test_the_last_message_of_the_assistant_goes_on(text_backend: TextBackend) -> None:
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "Well,"}]
    async with client_of(text_backend) as client:
        answer = (await client.post("/v1/messages", json=saying("", messages=messages))).json()
    assert answer["content"][0]["text"] == "user: x\nassistant: Well,"


IMAGE = [{"type": "image", "source": {"type": "url", "url": "a"}}]


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("more", "begin"),
    [
        ({"max_tokens": None}, "max_tokens:"),
        ({"max_tokens": 0}, "max_tokens:"),
        ({"messages": []}, "messages:"),
        ({"messages": [{"role": "system", "content": "x"}]}, "messages[0].role:"),
        ({"messages": [{"role": "user", "content": IMAGE}]}, "messages[0].content[0].source.url:"),
        ({"messages": [{"role": "assistant", "content": IMAGE}]}, "messages[0].content[0].type:"),
        ({"system": IMAGE}, "system[0].type:"),
        ({"stop_sequences": [3]}, "stop_sequences[0]:"),
        ({"thinking": {"type": "much"}}, "thinking.type:"),
        ({"thinking": {"type": "enabled", "budget_tokens": "a"}}, "thinking.budget_tokens:"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type:"),
        ({"tools": [{"name": "a b"}]}, "tools[0].name:"),
        ({"tools": [{"name": "a", "input_schema": 3}]}, "tools[0].input_schema:"),
        ({"tool_choice": {"type": "some"}}, "tool_choice.type:"),
        ({"tool_choice": {"type": "any"}}, "tool_choice:"),
        ({"mcp_servers": [{}]}, "mcp_servers:"),
        ({"container": "a"}, "container:"),
    ],
)
async def test_what_is_wrong_is_told_in_the_shape_of_this_api(
    shared_client: httpx2.AsyncClient, more: dict[str, object], begin: str
) -> None:
    answer = await shared_client.post("/v1/messages", json=saying("x") | more)
    assert answer.status_code == 400
    told = answer.json()
    assert (told["type"], told["error"]["type"]) == ("error", "invalid_request_error")
    assert told["error"]["message"].startswith(begin)


async def test_an_unknown_model_and_a_failure_in_mid_stream_have_their_types(
    start_backend: StartBackend,
) -> None:
    backend, _ = await start_backend(mocker_fault="step:3")
    async with client_of(backend) as client:
        for path in ("/v1/messages", "/v1/messages/count_tokens"):
            unknown = await client.post(path, json=saying("x", model="other"))
            assert (unknown.status_code, unknown.json()["error"]["type"]) == (404, "not_found_error")
        events = await events_of(client, saying("abcdef"))
    assert events[-1]["type"] == "error"
    assert events[-1]["error"]["type"] == "api_error"


FOREIGN = {"headers": {"origin": "http://a.example"}}


@pytest.mark.parametrize(
    ("method", "path", "more", "status", "kind"),
    [
        ("POST", "/v1/messages", {"headers": {"host": "example.org"}}, 403, "permission_error"),
        ("POST", "/v1/messages?beta=true", FOREIGN, 403, "permission_error"),
        ("GET", "/v1/messages", {}, 405, "invalid_request_error"),
        ("POST", "/v1/messages/batches", {"json": {}}, 404, "not_found_error"),
        ("POST", "/v1/messages", {"content": b"{}"}, 415, "invalid_request_error"),
        ("POST", "/v1/messages?beta=true", {"json": "x" * 70_000}, 413, "request_too_large"),
        ("POST", "/llm/v1/messages", {"json": "x" * 70_000}, 413, "request_too_large"),
        ("POST", f"/v1/messages?{'x' * 40_000}", {"json": {}}, 414, "invalid_request_error"),
    ],
)
async def test_what_is_refused_before_a_route_has_read_it_has_that_shape_too(
    text_backend: TextBackend, method: str, path: str, more: dict[str, object], status: int, kind: str
) -> None:
    async with client_of(text_backend, root_path="/llm", max_message_bytes=65_536) as client:
        answer = await client.request(method, path, **more)
        other = await client.request(method, path.replace("messages", "responses"), **more)
    assert answer.status_code == other.status_code == status
    told = answer.json()
    assert (told["type"], told["error"]["type"]) == ("error", kind)
    assert sorted(told["error"]) == ["message", "type"]
    assert sorted(other.json()["error"]) == ["code", "message", "param", "type"]
