from __future__ import annotations

import pytest
from openai import AsyncOpenAI, BadRequestError

from enginewire.backend.frontends.text_backend import TextBackend
from tests.backend.frontends.conftest import StartBackend
from tests.backend.frontends.http_api.serving import sdk

MODEL = "mocker"
HI = [{"role": "user", "content": "hi"}]
ECHO = "user: hi\nassistant: "


async def test_a_conversation_is_answered_in_one_piece(text_backend: TextBackend) -> None:
    async with sdk(text_backend) as client:
        answer = await client.chat.completions.create(model=MODEL, messages=HI)
    assert answer.choices[0].message.content == ECHO
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.object == "chat.completion"
    assert answer.model == MODEL
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (20, 21)
    assert answer.usage.total_tokens == 41


async def test_a_stream_says_the_same_piece_by_piece(text_backend: TextBackend) -> None:
    async with sdk(text_backend) as client:
        stream = await client.chat.completions.create(
            model=MODEL, messages=HI, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    choices = [choice for chunk in chunks for choice in chunk.choices]
    assert choices[0].delta.role == "assistant"
    assert all(choice.delta.role is None for choice in choices[1:])
    assert "".join(choice.delta.content or "" for choice in choices) == ECHO
    assert [choice.finish_reason for choice in choices if choice.finish_reason] == ["stop"]
    assert choices[-1].finish_reason == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == 41
    assert [chunk.usage for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert len({(chunk.id, chunk.created, chunk.object) for chunk in chunks}) == 1


async def test_choices_and_logprobs_are_told_apart(start_backend: StartBackend) -> None:
    backend, _ = await start_backend()
    async with sdk(backend) as client:
        answer = await client.chat.completions.create(
            model=MODEL,
            messages=HI,
            n=2,
            seed=-1,
            temperature=1.5,
            logprobs=True,
            top_logprobs=2,
            max_tokens=4,
        )
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert [choice.finish_reason for choice in answer.choices] == ["length"] * 2
    for choice in answer.choices:
        assert choice.logprobs is not None
        rows = choice.logprobs.content or []
        assert "".join(row.token for row in rows) == choice.message.content
        assert bytes(byte for row in rows for byte in row.bytes or []).decode() == choice.message.content
        assert all(len(row.top_logprobs) == 2 and row.logprob <= 0 for row in rows)


async def test_streamed_logprobs_have_a_row_for_every_token(text_backend: TextBackend) -> None:
    messages = [{"role": "user", "content": "日本"}]
    async with sdk(text_backend) as client:
        whole = await client.chat.completions.create(model=MODEL, messages=messages, logprobs=True)
        stream = await client.chat.completions.create(
            model=MODEL, messages=messages, logprobs=True, stream=True
        )
        rows = [
            row
            async for chunk in stream
            for choice in chunk.choices
            if choice.logprobs
            for row in choice.logprobs.content or []
        ]
    assert whole.choices[0].logprobs is not None
    assert rows == whole.choices[0].logprobs.content
    assert whole.usage is not None
    assert len(rows) == whole.usage.completion_tokens
    # Three tokens make one character: their bytes are their own, and join to it.
    assert "日本" in bytes(byte for row in rows for byte in row.bytes or []).decode()


async def test_text_parts_are_joined_and_the_younger_limit_wins(text_backend: TextBackend) -> None:
    parts = [{"type": "text", "text": "ab"}, {"type": "text", "text": "cd"}]
    async with sdk(text_backend) as client:
        answer = await client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": parts}],
            max_tokens=1,
            max_completion_tokens=10,
        )
    assert answer.choices[0].message.content == "user: abcd"
    assert answer.choices[0].finish_reason == "length"


async def test_a_stop_string_is_cut_and_named(text_backend: TextBackend) -> None:
    async with sdk(text_backend) as client:
        stream = await client.chat.completions.create(model=MODEL, messages=HI, stop=["\nassi"], stream=True)
        choices = [choice async for chunk in stream for choice in chunk.choices]
        shown = await client.chat.completions.create(
            model=MODEL, messages=HI, stop="\nassi", extra_body={"include_stop_str_in_output": True}
        )
    assert "".join(choice.delta.content or "" for choice in choices) == "user: hi"
    assert choices[-1].finish_reason == "stop"
    assert choices[-1].model_extra == {"stop_reason": "\nassi"}
    assert shown.choices[0].message.content == "user: hi\nassi"


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "file"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "assistant", "tool_calls": {}}]}, "messages[0].tool_calls"),
        ({"messages": [{"role": "assistant", "function_call": {"name": "a"}}]}, "messages[0].function_call"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"tools": [{"type": "function", "function": {"name": "a"}}]}, "tools"),
        ({"reasoning_effort": "much"}, "reasoning_effort"),
        ({"reasoning_effort": "low"}, "reasoning_effort"),
        ({"chat_template_kwargs": {"enable_thinking": True}}, "chat_template_kwargs.enable_thinking"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
        ({"echo": True}, "echo"),
        ({"prompt_logprobs": 1}, "prompt_logprobs"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"response_format": {"type": "xml"}}, "response_format"),
    ],
)
async def test_what_is_wrong_in_a_conversation_is_a_bad_request_with_its_field(
    shared_sdk: AsyncOpenAI, body: dict[str, object], param: str
) -> None:
    with pytest.raises(BadRequestError) as refusal:
        await shared_sdk.chat.completions.create(model=MODEL, messages=HI, extra_body=body)
    assert refusal.value.param == param
    assert refusal.value.type == "invalid_request_error"
