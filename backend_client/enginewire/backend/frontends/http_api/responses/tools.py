"""The tools of a response, which are flat, as chat has them, where each is a `function`. Sans-IO."""

from __future__ import annotations

from typing import Final

from enginewire.backend.frontends.http_api.body import Body, InvalidBody, checked
from enginewire.backend.frontends.http_api.openai.tools.fields import CHOICE, TOOLS

# Who calls other tools than these is a server that has them.
FUNCTION: Final = "function"


def chat_tools(body: Body) -> dict[str, object]:
    """`tools` and `tool_choice` as chat has them. Raises InvalidBody."""
    chat: dict[str, object] = {}
    if body.get(TOOLS) is not None:
        tools = checked(TOOLS, body.get(TOOLS), list)
        chat[TOOLS] = [chat_tool(f"{TOOLS}[{place}]", each) for place, each in enumerate(tools)]
    if (choice := body.get(CHOICE)) is not None:
        chat[CHOICE] = chat_choice(choice)
    return chat


def chat_tool(field: str, value: object) -> dict[str, object]:
    """One tool. Raises InvalidBody."""
    tool = dict(Body(checked(field, value, dict)).items())
    if tool.pop("type", None) != FUNCTION:
        raise InvalidBody(f"{field}.type", f"must be {FUNCTION}")
    return {"type": FUNCTION, FUNCTION: {key: each for key, each in tool.items() if each is not None}}


def chat_choice(choice: object) -> object:
    """Which of them is called."""
    if not isinstance(choice, dict) or choice.get("type") != FUNCTION:
        return choice
    return {"type": FUNCTION, FUNCTION: {"name": choice.get("name")}}


def response_field(field: str) -> str:
    """What a field of chat is called here."""
    return field.replace(f".{FUNCTION}.", ".", 1) if field.startswith((TOOLS, CHOICE)) else field
