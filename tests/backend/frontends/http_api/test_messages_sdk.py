"""The API of Anthropic, as its own SDK reads it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from enginewire.backend.frontends.text_backend import TextBackend
from tests.backend.frontends.conftest import StartBackend
from tests.backend.frontends.http_api.openai.echoing import HERMES, LAST_MESSAGE, with_template
from tests.backend.frontends.http_api.serving import serving_http
from tests.backend.frontends.http_api.test_messages import WEATHER, saying
from tests.patience import PATIENCE_SECONDS

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic
    from anthropic.types import Message

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "京都"}}\n</tool_call>'


@asynccontextmanager
async def sdk(backend: TextBackend, **given: object) -> AsyncIterator[AsyncAnthropic]:
    # Takes two seconds, which are not for those who only collect the tests.
    from anthropic import AsyncAnthropic

    async with (
        serving_http(backend, **given) as face,
        AsyncAnthropic(
            base_url=face.address, api_key="none", max_retries=0, timeout=PATIENCE_SECONDS
        ) as client,
    ):
        yield client


async def both_ways(client: AsyncAnthropic, body: dict[str, object]) -> Message:
    """The message in one piece, which is also what the SDK puts together from a stream."""
    whole = await client.messages.create(**body)
    async with client.messages.stream(**body) as stream:
        texts = [text async for text in stream.text_stream]
        streamed = await stream.get_final_message()
    assert shown(streamed) == shown(whole)
    assert "".join(texts) == "".join(block.text for block in whole.content if block.type == "text")
    return whole


def shown(message: Message) -> list[object]:
    blocks = [
        block.text if block.type == "text" else (block.type, block.name, block.input)
        for block in message.content
    ]
    return [*blocks, message.stop_reason, message.stop_sequence]


async def test_a_text_and_the_length_of_its_prompt(text_backend: TextBackend) -> None:
    async with sdk(text_backend) as client:
        message = await both_ways(client, saying("東京", system="Be short."))
        body = {
            key: value for key, value in saying("東京", system="Be short.").items() if key != "max_tokens"
        }
        count = await client.messages.count_tokens(**body)
    text = "system: Be short.\nuser: 東京\nassistant: "
    assert shown(message) == [text, "end_turn", None]
    assert count.input_tokens == message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0)


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        # A token of this model is a byte: every stop sequence comes in several, as those of others may.
        (f"Let me see. END{CALL}", ["Let me see. ", "stop_sequence", "END"]),
        (f"One.{CALL}\nEND of it", ["One.", ("tool_use", "get_weather", {"city": "京都"}), "tool_use", None]),
        (f"EN{CALL}D", ["EN", ("tool_use", "get_weather", {"city": "京都"}), "D", "tool_use", None]),
    ],
)
async def test_a_stop_sequence_beside_a_call(
    text_backend: TextBackend, said: str, kept: list[object]
) -> None:
    async with sdk(with_template(text_backend, HERMES + LAST_MESSAGE)) as client:
        message = await both_ways(client, saying(said, tools=[WEATHER], stop_sequences=["END"]))
    assert shown(message) == kept


async def test_errors_are_those_of_the_sdk_wherever_they_come_from(start_backend: StartBackend) -> None:
    from anthropic import APIStatusError, NotFoundError

    backend, _ = await start_backend(mocker_fault="step:3")
    async with sdk(backend, max_message_bytes=65_536) as client:
        with pytest.raises(NotFoundError) as unknown:
            await client.messages.create(**saying("x", model="other"))
        with pytest.raises(NotFoundError) as no_route:
            await client.messages.batches.list()
        with pytest.raises(APIStatusError) as too_large:
            await client.messages.create(**saying("x" * 70_000))
        with pytest.raises(APIStatusError) as broken:
            async with client.messages.stream(**saying("abcdef")) as stream:
                await stream.until_done()
    told = [error.value.type for error in (unknown, no_route, too_large, broken)]
    assert told == ["not_found_error", "not_found_error", "request_too_large", "api_error"]
