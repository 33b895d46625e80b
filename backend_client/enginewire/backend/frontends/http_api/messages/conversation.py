"""The messages of Anthropic's API, whose content is blocks, as those of a chat completion. Sans-IO."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import orjson

from enginewire.backend.frontends.http_api.body import Body, InvalidBody, checked
from enginewire.backend.frontends.http_api.openai.conversation.images import (
    Part,
    is_image,
    joined,
    read_base64,
    read_url,
)
from enginewire.backend.prompting.conversation import Image
from enginewire.backend.prompting.prompts import MAX_MESSAGES

ROLES: Final = ("user", "assistant")

Message = dict[str, object]


def chat_messages(body: Body) -> list[Message]:
    """`system` and `messages`. Raises InvalidBody."""
    rules = text_of("system", body.get("system"))
    messages: list[Message] = [{"role": "system", "content": rules}] if rules else []
    given = checked("messages", body.get("messages"), list, "a list of messages")
    if not 0 < len(given) <= MAX_MESSAGES:
        raise InvalidBody("messages", f"must be 1 to {MAX_MESSAGES} messages")
    for place, value in enumerate(given):
        field = f"messages[{place}]"
        message = Body(checked(field, value, dict))
        if message.get("role") not in ROLES:
            raise InvalidBody(f"{field}.role", f"must be {' or '.join(ROLES)}")
        read = answered if message.get("role") == "assistant" else said
        messages += read(f"{field}.content", message.get("content"))
    return messages


def said(field: str, content: object) -> Iterator[Message]:
    """What a user says: what came of calls, then the text and the images around it. Raises InvalidBody."""
    if isinstance(content, str):
        yield {"role": "user", "content": content}
        return
    parts: list[Part] = []
    has_results = False
    for name, block in blocks(field, content):
        match block.get("type"):
            case "text":
                parts.append(checked(f"{name}.text", block.get("text"), str))
            case "image":
                parts.append(read_image(f"{name}.source", block.get("source")))
            case "tool_result":
                has_results = True
                call_id = checked(f"{name}.tool_use_id", block.get("tool_use_id"), str)
                result = text_of(f"{name}.content", block.get("content"))
                yield {"role": "tool", "tool_call_id": call_id, "content": result}
            case _:
                raise InvalidBody(f"{name}.type", "not supported; only text, image and tool_result are")
    if parts or not has_results:
        yield {"role": "user", "content": joined(parts)}


def read_image(field: str, value: object) -> Image:
    """In base64, or by its URL. Raises InvalidBody."""
    source = Body(checked(field, value, dict), field)
    match source.get("type"):
        case "base64":
            media_type = checked(f"{field}.media_type", source.get("media_type"), str)
            if not is_image(media_type):
                raise InvalidBody(f"{field}.media_type", "must begin with image/")
            return read_base64(f"{field}.data", checked(f"{field}.data", source.get("data"), str), media_type)
        case "url":
            return read_url(f"{field}.url", source.get("url"))
    raise InvalidBody(f"{field}.type", "must be base64 or url")


def answered(field: str, content: object) -> Iterator[Message]:
    """An earlier answer. Raises InvalidBody."""
    if isinstance(content, str):
        yield {"role": "assistant", "content": content}
        return
    text, thinking, calls = "", "", []
    for name, block in blocks(field, content):
        match block.get("type"):
            case "text":
                text += checked(f"{name}.text", block.get("text"), str)
            case "thinking":
                thinking += checked(f"{name}.thinking", block.get("thinking"), str)
            case "tool_use":
                calls.append(call_of(name, block))
            case _:
                raise InvalidBody(f"{name}.type", "not supported; only text, thinking and tool_use are")
    message: Message = {"role": "assistant", "content": text}
    if thinking:
        message["reasoning_content"] = thinking
    yield message | ({"tool_calls": calls} if calls else {})


def call_of(field: str, block: Body) -> Message:
    """A call as chat has it. Raises InvalidBody."""
    arguments = checked(f"{field}.input", block.get("input"), dict)
    function = {
        "name": checked(f"{field}.name", block.get("name"), str),
        "arguments": orjson.dumps(arguments).decode(),
    }
    return {"id": checked(f"{field}.id", block.get("id"), str), "type": "function", "function": function}


def blocks(field: str, content: object) -> Iterator[tuple[str, Body]]:
    """Each block with its name. Raises InvalidBody."""
    for place, value in enumerate(checked(field, content, list, "a string or a list of blocks")):
        name = f"{field}[{place}]"
        yield name, Body(checked(name, value, dict))


def text_of(field: str, content: object) -> str:
    """A string, or blocks of text; nothing is no text. Raises InvalidBody."""
    if content is None or isinstance(content, str):
        return content or ""
    texts = []
    for name, block in blocks(field, content):
        if block.get("type") != "text":
            raise InvalidBody(f"{name}.type", "must be text")
        texts.append(checked(f"{name}.text", block.get("text"), str))
    return "".join(texts)
