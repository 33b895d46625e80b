"""The messages of a conversation, as chat templates read them.

Sans-IO. Knows nothing about other fields.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from enginewire.backend.frontends.http_api.body import Body, InvalidBody, checked
from enginewire.backend.frontends.http_api.openai.conversation.images import (
    Part,
    check_detail,
    joined,
    read_url,
)
from enginewire.backend.prompting.conversation import Image, Message
from enginewire.backend.prompting.prompts import MAX_MESSAGES

# Passed on as they are.
TEXTS: Final = ("name", "tool_call_id")
# What would be left out of the prompt → what is there instead.
UNSUPPORTED: Final = {
    "audio": "only text is",
    "function_call": "tool_calls are",
    "refusal": "put its text into content",
}
# Where callers put thinking; templates read the first one.
THINKING: Final = ("reasoning_content", "reasoning")


def read_messages(body: Body) -> list[Message]:
    """The conversation. Raises InvalidBody."""
    messages = checked("messages", body.get("messages"), list, "a list of messages")
    if not 0 < len(messages) <= MAX_MESSAGES:
        raise InvalidBody("messages", f"must be 1 to {MAX_MESSAGES} messages")
    return [read_message(f"messages[{place}]", message) for place, message in enumerate(messages)]


def read_message(field: str, value: object) -> Message:
    """One message; its content is a string, or parts if one of them is an image. Raises InvalidBody."""
    message = Body(checked(field, value, dict))
    role = checked(f"{field}.role", message.get("role"), str)
    if not role:
        raise InvalidBody(f"{field}.role", "must not be empty")
    for key, instead in UNSUPPORTED.items():
        if message.get(key):
            raise InvalidBody(f"{field}.{key}", f"not supported; {instead}")
    read: dict[str, object] = {
        "role": role,
        "content": read_content(f"{field}.content", message.get("content")),
    }
    for key in TEXTS:
        if message.get(key) is not None:
            read[key] = checked(f"{field}.{key}", message.get(key), str)
    for key in THINKING:
        if message.get(key) is not None:
            read.setdefault(THINKING[0], checked(f"{field}.{key}", message.get(key), str))
    if message.get("tool_calls") is not None:
        calls = read_calls(f"{field}.tool_calls", message.get("tool_calls"))
        if calls and role != "assistant":
            raise InvalidBody(f"{field}.tool_calls", "only allowed in messages of the assistant")
        # Templates ask whether there are any by asking whether the key is there.
        read |= {"tool_calls": calls} if calls else {}
    return read


def read_calls(field: str, value: object) -> list[Message]:
    """The calls of an answer. Raises InvalidBody."""
    calls = checked(field, value, list)
    return [read_call(f"{field}[{place}]", call) for place, call in enumerate(calls)]


def read_call(field: str, value: object) -> Message:
    """One call; templates want arguments as an object. Raises InvalidBody."""
    call = Body(checked(field, value, dict))
    if call.get("type") not in (None, "function"):
        raise InvalidBody(f"{field}.type", "must be function")
    function = Body(checked(f"{field}.function", call.get("function"), dict))
    name = checked(f"{field}.function.name", function.get("name"), str)
    text = checked(f"{field}.function.arguments", function.get("arguments") or "", str)
    read: dict[str, object] = {
        "type": "function",
        "function": {"name": name, "arguments": read_arguments(text)},
    }
    if call.get("id") is not None:
        read["id"] = checked(f"{field}.id", call.get("id"), str)
    return read


def read_arguments(text: str) -> object:
    """The arguments of a call. What is no JSON was written by a model, and is shown to it as it was."""
    try:
        return json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError):
        return text


def read_content(field: str, content: object) -> str | Sequence[object]:
    """The text of a message, or its parts if one of them is an image. Raises InvalidBody."""
    if content is None or isinstance(content, str):
        return content or ""
    given = checked(field, content, list, "a string or a list of parts")
    return joined([read_part(f"{field}[{place}]", part) for place, part in enumerate(given)])


def read_part(field: str, value: object) -> Part:
    """A text or an image, which another API may have read already. Raises InvalidBody."""
    if isinstance(value, Image):
        return value
    part = Body(checked(field, value, dict))
    match part.get("type"):
        case "text":
            return checked(f"{field}.text", part.get("text"), str)
        case "image_url":
            name = f"{field}.image_url"
            image = Body(checked(name, part.get("image_url"), dict))
            check_detail(name, image)
            return read_url(f"{name}.url", image.get("url"))
    raise InvalidBody(f"{field}.type", "must be text or image_url")
