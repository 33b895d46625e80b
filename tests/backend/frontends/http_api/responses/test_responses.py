"""The Responses API through OpenAI's own SDK."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2
import pytest
from openai import BadRequestError, NotFoundError
from openai.types.responses import ResponseOutputMessage

from enginewire.backend.frontends.text_backend import TextBackend
from tests.backend.frontends.conftest import StartBackend
from tests.backend.frontends.http_api.openai.echoing import with_template
from tests.backend.frontends.http_api.serving import sdk

MODEL = "mocker"
LOGPROBS = "message.output_text.logprobs"
JAPANESE = "東京は日本の首都です。"
EVENTS = [
    "response.created",
    "response.in_progress",
    "response.output_item.added",
    "response.content_part.added",
    "response.output_text.delta",
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
]


async def test_a_text_is_answered_by_one_message(text_backend: TextBackend) -> None:
    async with sdk(text_backend) as client:
        answer = await client.responses.create(
            model=MODEL,
            input=JAPANESE,
            instructions="Be short.",
            temperature=0,
            top_p=0.5,
            metadata={"a": "b"},
            store=True,
        )
    assert answer.output_text == f"system: Be short.\nuser: {JAPANESE}\nassistant: "
    (message,) = answer.output
    assert isinstance(message, ResponseOutputMessage)
    assert (message.role, message.status, message.content[0].type) == (
        "assistant",
        "completed",
        "output_text",
    )
    assert (answer.status, answer.object, answer.model) == ("completed", "response", MODEL)
    assert answer.id.startswith("resp")
    assert (answer.temperature, answer.top_p, answer.metadata) == (0, 0.5, {"a": "b"})
    assert (answer.instructions, answer.error, answer.incomplete_details) == ("Be short.", None, None)
    assert answer.model_extra["store"] is False
    usage = answer.usage
    assert usage.input_tokens == len(answer.output_text.encode())
    assert usage.output_tokens == usage.input_tokens + 1
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens
    assert usage.output_tokens_details.reasoning_tokens == 0


async def test_a_stream_tells_the_same_in_typed_events(text_backend: TextBackend) -> None:
    async with sdk(text_backend) as client:
        asked: dict[str, Any] = {"model": MODEL, "input": JAPANESE, "max_output_tokens": 200}
        whole = await client.responses.create(**asked)
        events = [event async for event in await client.responses.create(**asked, stream=True)]
    kinds = [event.type for event in events]
    assert list(dict.fromkeys(kinds)) == [*EVENTS, "response.completed"]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    last = events[-1].response
    done = {event.type: event for event in events}
    assert text == whole.output_text == last.output_text == done["response.output_text.done"].text
    assert done["response.content_part.done"].part.text == text
    assert done["response.output_item.done"].item.content[0].text == text
    assert last.usage == whole.usage
    assert events[0].response.status == "in_progress"
    assert {getattr(event, "item_id", last.output[0].id) for event in events} == {last.output[0].id}
    assert {event.response.id for event in events if hasattr(event, "response")} == {last.id}


async def test_the_sdks_own_accumulator_understands_the_stream(text_backend: TextBackend) -> None:
    async with sdk(text_backend) as client, client.responses.stream(model=MODEL, input="ab") as stream:
        async for _ in stream:
            pass
        answer = await stream.get_final_response()
    assert answer.output_text == "user: ab\nassistant: "


async def test_items_are_a_conversation_and_answers_can_be_sent_back(text_backend: TextBackend) -> None:
    async with sdk(text_backend) as client:
        first = await client.responses.create(model=MODEL, input=[{"role": "user", "content": "one"}])
        answer = await client.responses.create(
            model=MODEL,
            instructions="rules",
            input=[
                {"role": "developer", "content": "more rules"},
                {
                    "type": "message",
                    "role": "user",
                    "content": [
                        {"type": "input_text", "text": "o"},
                        {"type": "input_text", "text": "ne"},
                    ],
                },
                *[item.model_dump() for item in first.output],
                {"role": "user", "content": JAPANESE},
            ],
        )
    assert answer.output_text == (
        "system: rules\nsystem: more rules\nuser: one\nassistant: user: one\nassistant: \n"
        f"user: {JAPANESE}\nassistant: "
    )


@pytest.mark.parametrize("is_stream", [False, True])
async def test_an_answer_that_was_cut_is_incomplete(text_backend: TextBackend, is_stream: bool) -> None:
    async with sdk(text_backend) as client:
        answer = await client.responses.create(
            model=MODEL, input="abc", max_output_tokens=4, stream=is_stream
        )
        if is_stream:
            events = [event async for event in answer]
            assert events[-1].type == "response.incomplete"
            answer = events[-1].response
    assert (answer.status, answer.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert (answer.output_text, answer.output[0].status) == ("user", "incomplete")
    assert answer.usage.output_tokens == 4


async def test_log_probabilities_come_when_they_are_included(text_backend: TextBackend) -> None:
    async with sdk(text_backend) as client:
        asked: dict[str, Any] = {"model": MODEL, "input": "abc", "max_output_tokens": 5}
        asked |= {"include": [LOGPROBS], "top_logprobs": 2}
        whole = await client.responses.create(**asked)
        events = [event async for event in await client.responses.create(**asked, stream=True)]
    rows = whole.output[0].content[0].logprobs
    assert [row.token for row in rows] == list("user:")
    assert all(len(row.top_logprobs) == 2 and row.logprob <= 0 for row in rows)
    streamed = [row for event in events if event.type == EVENTS[4] for row in event.logprobs]
    assert [row.token for row in streamed] == list("user:")
    assert whole.top_logprobs == 2


async def test_what_vllm_adds_reaches_the_engine(text_backend: TextBackend) -> None:
    async with sdk(text_backend) as client:
        answer = await client.responses.create(
            model=MODEL,
            input="abc",
            extra_body={"stop": ["se"], "request_id": "mine", "seed": 3, "include_stop_str_in_output": True},
        )
    assert (answer.output_text, answer.id, answer.status) == ("use", "resp-mine", "completed")


@pytest.mark.parametrize("said", ["<think>東京 or not</think>\n\nYes, 東京.", "No thought.", "<think>cut"])
async def test_thinking_is_an_item_before_the_message(text_backend: TextBackend, said: str) -> None:
    backend = with_template(text_backend, "{# <think> </think> #}{{ messages[-1].content }}")
    async with sdk(backend) as client:
        asked: dict[str, Any] = {"model": MODEL, "input": said, "max_output_tokens": 200}
        asked |= {"include": [LOGPROBS]}
        whole = await client.responses.create(**asked)
        events = [event async for event in await client.responses.create(**asked, stream=True)]
        again = await client.responses.create(
            model=MODEL,
            input=[*[item.model_dump() for item in whole.output], {"role": "user", "content": said}],
        )
    *thoughts, message = whole.output
    thinking, _, text = said.removeprefix("<think>").partition("</think>")
    if not said.startswith("<think>"):
        thinking, text = "", said
    assert [thought.content[0].text for thought in thoughts] == ([thinking] if thinking else [])
    assert whole.output_text == text.strip() == again.output_text
    assert len(message.content[0].logprobs) == whole.usage.output_tokens
    deltas: dict[str, str] = {}
    for event in events:
        if event.type.endswith("_text.delta"):
            deltas[event.item_id] = deltas.get(event.item_id, "") + event.delta
    streamed = events[-1].response
    assert [deltas.get(item.id, "") for item in streamed.output] == [
        item.content[0].text for item in whole.output
    ]
    places = [event.output_index for event in events if event.type == "response.output_item.done"]
    assert places == list(range(len(whole.output)))
    assert [event.sequence_number for event in events] == list(range(len(events)))


async def test_many_at_once_and_a_refused_one_between_get_their_own(text_backend: TextBackend) -> None:
    async with sdk(text_backend) as client:

        async def ask(number: int) -> str:
            asked: dict[str, Any] = {"model": MODEL, "input": f"caller {number}", "max_output_tokens": 100}
            if number % 3 == 0:
                with pytest.raises(BadRequestError):
                    await client.responses.create(**asked, previous_response_id="resp_1")
            if number % 2:
                return (await client.responses.create(**asked)).output_text
            events = [event async for event in await client.responses.create(**asked, stream=True)]
            return events[-1].response.output_text

        expected = [f"user: caller {number}\nassistant: " for number in range(30)]
        assert await asyncio.gather(*map(ask, range(30))) == expected


async def test_a_failure_in_the_middle_of_a_stream_is_its_last_event(start_backend: StartBackend) -> None:
    backend, _ = await start_backend(mocker_fault="step:3")
    async with sdk(backend) as client:
        stream = await client.responses.create(model=MODEL, input="abcdef", stream=True)
        events = [event async for event in stream]
    assert events[-1].type == "response.failed"
    assert events[-1].response.status == "failed"
    assert events[-1].response.error.code
    assert [event.sequence_number for event in events] == list(range(len(events)))


async def test_a_caller_who_leaves_frees_the_engine(start_backend: StartBackend) -> None:
    backend, serving = await start_backend(mocker_itl_ms=5.0)
    async with sdk(backend) as client:
        stream = await client.responses.create(
            model=MODEL, input="x", stream=True, max_output_tokens=4000, extra_body={"ignore_eos": True}
        )
        await anext(aiter(stream))
        await stream.close()
        await serving.until_idle()


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": None}, "input"),
        ({"input": 7}, "input"),
        ({"input": []}, "input"),
        ({"input": [{"role": "user", "content": "x"}] * 4097}, "input"),
        ({"input": ["x"]}, "input[0]"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "", "content": "x"}]}, "input[0].role"),
        ({"input": [{"type": "item_reference", "id": "a"}]}, "input[0].type"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "a"}]}]},
            "input[0].content[0].image_url",
        ),
        ({"instructions": 7}, "instructions"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": "many"}, "max_output_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 2}, "top_p"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"top_logprobs": 99, "include": [LOGPROBS]}, "top_logprobs"),
        ({"include": ["reasoning.encrypted_content"]}, "include[0]"),
        ({"truncation": "middle"}, "truncation"),
        ({"text": {"format": {"type": "grammar"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "text.format"),
        ({"text": {"format": {"type": "json_object"}}}, "text.format"),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"metadata": "a"}, "metadata"),
        ({"stream_options": {"include_obfuscation": False}}, "stream_options"),
        ({"background": True}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"reasoning": {"effort": "low"}}, "reasoning.effort"),
        ({"reasoning": {"effort": 3}}, "reasoning.effort"),
        ({"reasoning": {"summary": "auto"}}, "reasoning.summary"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"max_tool_calls": 3}, "max_tool_calls"),
        ({"n": 2}, "n"),
        ({"messages": [{"role": "user", "content": "x"}]}, "messages"),
        ({"max_tokens": 3}, "max_tokens"),
        ({"chat_template": "x"}, "chat_template"),
    ],
)
async def test_what_is_wrong_is_a_bad_request_with_its_field(
    shared_client: httpx2.AsyncClient, body: dict[str, object], param: str
) -> None:
    answer = await shared_client.post("/v1/responses", json={"model": MODEL, "input": "x"} | body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    again = await shared_client.post("/v1/responses", json={"input": "x"})
    assert again.json()["status"] == "completed"


async def test_nothing_is_stored(text_backend: TextBackend) -> None:
    async with sdk(text_backend) as client:
        answer = await client.responses.create(model=MODEL, input="x", store=True)
        with pytest.raises(NotFoundError):
            await client.responses.retrieve(answer.id)
        with pytest.raises(NotFoundError):
            await client.responses.cancel(answer.id)


async def test_a_conversation_that_is_too_long_is_refused_or_cut(start_backend: StartBackend) -> None:
    backend, _ = await start_backend(max_model_len=64)
    async with sdk(backend) as client:
        with pytest.raises(BadRequestError) as refusal:
            await client.responses.create(model=MODEL, input="x" * 80)
        assert refusal.value.code == "context_length_exceeded"
        assert refusal.value.param == "input"
        answer = await client.responses.create(
            model=MODEL, input="x" * 80, truncation="auto", max_output_tokens=10
        )
    assert answer.usage.input_tokens == 54
    assert answer.truncation == "auto"


async def test_an_unknown_model_is_not_found(text_backend: TextBackend) -> None:
    async with sdk(text_backend) as client:
        with pytest.raises(NotFoundError) as refusal:
            await client.responses.create(model="gpt-none", input="x", stream=True)
    assert refusal.value.param == "model"
