"""A response that follows a schema, from a real model in a process of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from openai import OpenAI

from tests.backend.frontends.http_api.test_process import process

__all__ = ["process"]  # a fixture

SCHEMA = {
    "type": "object",
    "properties": {"ready": {"type": "boolean"}},
    "required": ["ready"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "name": "state", "schema": SCHEMA, "strict": True}


@pytest.fixture(scope="module")
def client(process: tuple[object, str]) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{process[1]}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_the_answer_follows_the_schema_in_one_piece_and_in_a_stream(client: OpenAI) -> None:
    asked: dict[str, Any] = {"input": "Is the engine ready?", "temperature": 0, "max_output_tokens": 100}
    asked |= {"model": client.models.list().data[0].id, "text": {"format": FORMAT}}
    whole = client.responses.create(**asked)
    *_, last = client.responses.create(**asked, stream=True)
    assert json.loads(whole.output_text).keys() == {"ready"}
    assert last.response.output_text == whole.output_text
    assert whole.text.format.type == "json_schema"
