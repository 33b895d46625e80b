from __future__ import annotations

import pytest

from backend_client.frontends.text_backend import TextBackend
from tests.backend_client.frontends.conftest import StartBackend
from tests.backend_client.frontends.http_serving import sdk

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
