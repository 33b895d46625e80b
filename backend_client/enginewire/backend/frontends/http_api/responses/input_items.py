"""What a response answers, as the messages of a conversation: a text, or items. Sans-IO."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from enginewire.backend.frontends.http_api.body import Body, InvalidBody, checked
from enginewire.backend.frontends.http_api.openai.conversation.images import (
    Part,
    check_detail,
    joined,
    read_url,
)
from enginewire.backend.prompting.prompts import MAX_MESSAGES

# As chat templates know them, which have the older name of those who make the rules.
ROLES: Final = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
TEXT_PARTS: Final = ("input_text", "output_text", "text")
IMAGE_PART: Final = "input_image"
THINKING_PARTS: Final = ("reasoning_text",)
CALL: Final = "function_call"
RESULT: Final = "function_call_output"
KINDS: Final = ("message", "reasoning", CALL, RESULT)

Message = dict[str, object]


def read_messages(body: Body) -> list[Message]:
    """`instructions` and `input`. Raises InvalidBody."""
    instructions = body.text("instructions")
    rules: list[Message] = [{"role": "system", "content": instructions}] if instructions else []
    given = body.get("input")
    if isinstance(given, str):
        return [*rules, {"role": "user", "content": given}]
    items = checked("input", given, list, "a string or a list of items")
    if not 0 < len(items) <= MAX_MESSAGES - len(rules):
        raise InvalidBody("input", f"must be 1 to {MAX_MESSAGES} items, instructions included")
    conversation = Items(rules)
    for place, value in enumerate(items):
        name = f"input[{place}]"
        conversation.add(name, Body(checked(name, value, dict)))
    return conversation.messages


class Items:
    """Items in, messages out: thinking, text and calls that follow each other are one message."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self.messages = [*messages]
        self._thinking = ""
        # The message that calls belong to, while nothing else has come between.
        self._answer: Message | None = None

    def add(self, field: str, item: Body) -> None:
        """The next item. Raises InvalidBody."""
        match item.get("type") or "message":
            case "reasoning":
                content = item.get("content") or []
                self._thinking += read_content(f"{field}.content", content, THINKING_PARTS)
                self._answer = None
            case "message":
                self._put(read_message(field, item))
            case "function_call":
                self._call(read_call(field, item))
            case "function_call_output":
                self._put(read_result(field, item))
            case _:
                raise InvalidBody(f"{field}.type", f"not supported; only {', '.join(KINDS)} are")

    def _put(self, message: Message) -> None:
        is_answer = message["role"] == "assistant"
        if self._thinking and is_answer:
            message["reasoning_content"] = self._thinking
        self._thinking = ""
        self._answer = message if is_answer else None
        self.messages.append(message)

    def _call(self, call: Message) -> None:
        if self._answer is None:
            self._put({"role": "assistant", "content": ""})
        assert self._answer is not None
        calls = self._answer.setdefault("tool_calls", [])
        assert isinstance(calls, list)
        calls.append(call)


def read_message(field: str, item: Body) -> Message:
    """What somebody has said. Raises InvalidBody."""
    role = checked(f"{field}.role", item.get("role"), str)
    if role not in ROLES:
        raise InvalidBody(f"{field}.role", f"must be one of {', '.join(ROLES)}")
    return {"role": ROLES[role], "content": read_said(f"{field}.content", item.get("content"))}


def read_said(field: str, content: object) -> str | Sequence[object]:
    """A text, or parts as chat has them if one of them is an image. Raises InvalidBody."""
    if isinstance(content, str):
        return content
    given = checked(field, content, list, "a string or a list of parts")
    return joined([read_part(f"{field}[{place}]", value) for place, value in enumerate(given)])


def read_part(field: str, value: object) -> Part:
    """A text or an image. Raises InvalidBody."""
    part = Body(checked(field, value, dict))
    if part.get("type") in TEXT_PARTS:
        return checked(f"{field}.text", part.get("text"), str)
    if part.get("type") != IMAGE_PART:
        raise InvalidBody(f"{field}.type", f"must be {', '.join(TEXT_PARTS)} or {IMAGE_PART}")
    if part.get("file_id") is not None:
        raise InvalidBody(f"{field}.file_id", "not supported; nothing is stored")
    check_detail(field, part)
    return read_url(f"{field}.image_url", part.get("image_url"))


def read_call(field: str, item: Body) -> Message:
    """A call of an earlier answer, as chat has it. Raises InvalidBody."""
    function = {key: checked(f"{field}.{key}", item.get(key), str) for key in ("name", "arguments")}
    call_id = checked(f"{field}.call_id", item.get("call_id"), str)
    return {"id": call_id, "type": "function", "function": function}


def read_result(field: str, item: Body) -> Message:
    """What came of a call. Raises InvalidBody."""
    call_id = checked(f"{field}.call_id", item.get("call_id"), str)
    content = read_content(f"{field}.output", item.get("output"), TEXT_PARTS)
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def read_content(field: str, content: object, parts: Sequence[str]) -> str:
    """The text of a message, in one piece or in parts of these types. Raises InvalidBody."""
    if isinstance(content, str):
        return content
    texts = []
    for place, value in enumerate(checked(field, content, list, "a string or a list of parts")):
        part = Body(checked(f"{field}[{place}]", value, dict))
        if part.get("type") not in parts:
            raise InvalidBody(f"{field}[{place}].type", f"must be {' or '.join(parts)}")
        texts.append(checked(f"{field}[{place}].text", part.get("text"), str))
    return "".join(texts)
