"""instructor, which asks for a tool and returns its arguments as a model of pydantic."""

from __future__ import annotations

import instructor
from openai import OpenAI

from tests.clients.asked import KEY, MODEL, QUESTION, Place

SAID = [{"role": "user", "content": QUESTION}]


def test_mode_tools(base_url: str) -> None:
    with OpenAI(base_url=base_url, api_key=KEY, max_retries=0) as client:
        asking = instructor.from_openai(client, mode=instructor.Mode.TOOLS)
        place = asking.chat.completions.create(
            model=MODEL, messages=SAID, response_model=Place, max_retries=0
        )
    assert isinstance(place, Place)
