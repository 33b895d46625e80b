"""What a response answers, as the messages of a conversation: a text, or items. Sans-IO."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from enginewire.backend.frontends.http_api.body import Body, InvalidBody, checked
from enginewire.backend.prompting.prompts import MAX_MESSAGES

# Chat templates know the older name of those who make the rules.
ROLES: Final = {"developer": "system"}
TEXT_PARTS: Final = ("input_text", "output_text", "text")
THINKING_PARTS: Final = ("reasoning_text",)

Message = dict[str, str]


def read_messages(body: Body) -> list[Message]:
    """`instructions` and `input`. Raises InvalidBody."""
    instructions = body.text("instructions")
    rules = [{"role": "system", "content": instructions}] if instructions else []
    given = body.get("input")
    if isinstance(given, str):
        return [*rules, {"role": "user", "content": given}]
    if given is None:
        raise InvalidBody("input", "must be a string or a list of items")
    items = checked("input", given, list)
    if not 0 < len(items) <= MAX_MESSAGES - len(rules):
        raise InvalidBody("input", f"must be 1 to {MAX_MESSAGES} items, instructions included")
    messages: list[Message] = [*rules]
    thinking = ""
    for place, value in enumerate(items):
        name = f"input[{place}]"
        item = Body(checked(name, value, dict))
        if item.get("type") == "reasoning":
            thinking += read_content(f"{name}.content", item.get("content") or [], THINKING_PARTS)
            continue
        message = read_item(name, item)
        if thinking and message["role"] == "assistant":
            message["reasoning_content"] = thinking
        thinking = ""
        messages.append(message)
    return messages


def read_item(field: str, item: Body) -> Message:
    """One message. Raises InvalidBody."""
    if item.get("type") not in (None, "message"):
        raise InvalidBody(f"{field}.type", "not supported; only message and reasoning are")
    role = checked(f"{field}.role", item.get("role"), str)
    if not role:
        raise InvalidBody(f"{field}.role", "must not be empty")
    content = read_content(f"{field}.content", item.get("content"), TEXT_PARTS)
    return {"role": ROLES.get(role, role), "content": content}


def read_content(field: str, content: object, parts: Sequence[str]) -> str:
    """The text of a message, in one piece or in parts of these types. Raises InvalidBody."""
    if isinstance(content, str):
        return content
    texts = []
    for place, value in enumerate(checked(field, content, list)):
        part = Body(checked(f"{field}[{place}]", value, dict))
        if part.get("type") not in parts:
            raise InvalidBody(f"{field}[{place}].type", f"must be {' or '.join(parts)}")
        texts.append(checked(f"{field}[{place}].text", part.get("text"), str))
    return "".join(texts)
