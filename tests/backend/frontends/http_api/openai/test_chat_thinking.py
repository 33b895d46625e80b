from __future__ import annotations

import pytest

from enginewire.backend.frontends.text_backend import TextBackend
from tests.backend.frontends.http_api.openai.echoing import LAST_MESSAGE, with_template
from tests.backend.frontends.http_api.serving import sdk

# The mocker repeats the prompt, so what the prompt ends with comes once more behind the answer.
OPENED = "{# </think> #}" + LAST_MESSAGE + "{% if add_generation_prompt %}<think>{% endif %}"


def saying(text: str, **more: object) -> dict[str, object]:
    return {"model": "mocker", "messages": [{"role": "user", "content": text}], **more}


async def test_thinking_that_the_prompt_has_opened_is_told_apart(text_backend: TextBackend) -> None:
    async with sdk(with_template(text_backend, OPENED)) as client:
        answer = await client.chat.completions.create(**saying("so\n</think>\n\n京都"))
        stream = await client.chat.completions.create(**saying("so\n</think>\n\n京都", stream=True))
        deltas = [choice.delta async for chunk in stream for choice in chunk.choices]
    message = answer.choices[0].message
    assert message.content == "京都<think>"
    assert message.model_extra == {"reasoning_content": "so", "reasoning": "so"}
    assert "".join(delta.content or "" for delta in deltas) == "京都<think>"
    for key in ("reasoning_content", "reasoning"):
        assert "".join((delta.model_extra or {}).get(key) or "" for delta in deltas) == "so"


async def test_thinking_is_left_out_or_left_in_on_request(text_backend: TextBackend) -> None:
    backend = with_template(text_backend, OPENED)
    async with sdk(backend) as client:
        hidden = await client.chat.completions.create(
            **saying("so</think>Hi", extra_body={"include_reasoning": False})
        )
    async with sdk(backend, reasoning_parser="none") as client:
        plain = await client.chat.completions.create(**saying("so</think>Hi"))
    assert hidden.choices[0].message.content == "Hi<think>"
    assert not (hidden.choices[0].message.model_extra or {}).get("reasoning_content")
    assert plain.choices[0].message.content == "so</think>Hi<think>"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, "a[Hi]b"),
        ({"add_generation_prompt": False}, "a[Hi]"),
        ({"continue_final_message": True}, "a[Hi"),
        ({"chat_template_kwargs": {"enable_thinking": False}}, "[Hi]b"),
        ({"reasoning_effort": "none"}, "[Hi]b"),
    ],
)
async def test_the_template_gets_what_was_asked_for(text_backend, fields, expected) -> None:
    template = (
        "{% if enable_thinking is not defined or enable_thinking %}a{% endif %}[" + LAST_MESSAGE + "]"
        "{% if add_generation_prompt %}b{% endif %}"
    )
    async with sdk(with_template(text_backend, template)) as client:
        answer = await client.chat.completions.create(**saying("Hi", extra_body=fields))
    assert answer.choices[0].message.content == expected
