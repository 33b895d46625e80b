"""What callers ask a mocker with OpenAI's client, and how long the answer is."""

from __future__ import annotations

from typing import Any

from openai import AsyncOpenAI, AsyncStream
from openai.types.chat import ChatCompletionChunk


def question(num_tokens: int) -> dict[str, Any]:
    """The answer has so many tokens."""
    return {
        "model": "mocker",
        "messages": [{"role": "user", "content": "again and again"}],
        "max_completion_tokens": num_tokens,
        "extra_body": {"ignore_eos": True},
    }


async def ask(client: AsyncOpenAI, num_tokens: int) -> AsyncStream[ChatCompletionChunk]:
    """A stream that has begun."""
    return await client.chat.completions.create(
        **question(num_tokens), stream=True, stream_options={"include_usage": True}
    )


async def told_tokens(stream: AsyncStream[ChatCompletionChunk]) -> list[int]:
    """How many tokens the answer has, as it says at its end; empty when it says nothing."""
    return [chunk.usage.completion_tokens async for chunk in stream if chunk.usage]
