"""The body of a message, read as that of a chat completion.

Sans-IO. Holds what the two call differently and what cannot be done here. Knows nothing about answers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from enginewire.backend.frontends.http_api.body import Body, InvalidBody, checked
from enginewire.backend.frontends.http_api.messages.conversation import chat_messages
from enginewire.backend.frontends.http_api.openai.answers.format import ModelFormats
from enginewire.backend.frontends.http_api.openai.chat import ChatEndpoint
from enginewire.backend.frontends.http_api.openai.fields.generation import Neutral, refuse_unsupported
from enginewire.backend.frontends.http_api.openai.generation_request import (
    GenerationRequest,
    ask_for_prompt_ids,
)

UNSUPPORTED: Final[Neutral] = {
    "container": (),
    "context_management": ({},),
    "mcp_servers": ([],),
    "output_config": ({},),
    "output_format": (),
}
# What chat calls otherwise.
RENAMED: Final = {
    "max_completion_tokens": "max_tokens",
    "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
    "stop": "stop_sequences",
    "thinking_token_budget": "thinking.budget_tokens",
}
# Path of the contract → key, for what an engine refuses.
PARAMS: Final = {
    "stop_conditions.max_thinking_tokens": RENAMED["thinking_token_budget"],
    "stop_conditions.stop": RENAMED["stop"],
}
# What chat calls the same.
SAME: Final = ("model", "stream", "temperature", "top_k", "top_p")
CHOICES: Final = {"any": "required", "auto": "auto", "none": "none"}
# The last word of the prompt is the answer's first.
PREFILLED: Final = {"continue_final_message": True}


def read_request(body: Body, formats: ModelFormats) -> GenerationRequest:
    """Raises InvalidBody."""
    refuse_unsupported(body, UNSUPPORTED)
    checked("max_tokens", body.get("max_tokens"), int)
    asked = read_prompt(body, formats)
    # A stream begins with how long its prompt is.
    ask_for_prompt_ids(asked.prompts)
    return asked


def read_prompt(body: Body, formats: ModelFormats) -> GenerationRequest:
    """The same without `max_tokens`, which counting does not need. Raises InvalidBody."""
    chat = Body(as_chat(body))
    try:
        asked = ChatEndpoint(formats).read(chat)
    except InvalidBody as error:
        raise InvalidBody(renamed(error.field), error.message) from error
    params = {path: renamed(field) for path, field in asked.params.items()}
    return replace(asked, params={**PARAMS, **params})


def renamed(field: str) -> str:
    """What a field of a chat completion is called here; a message may have become several."""
    key, bracket, rest = field.partition("[")
    if field.startswith("tool"):
        return field.replace(".function.parameters", ".input_schema").replace(".function.", ".")
    return key if key == "messages" else RENAMED.get(key, key) + bracket + rest


def as_chat(body: Body) -> dict[str, object]:
    """As a chat completion calls it. Raises InvalidBody."""
    messages = chat_messages(body)
    return {
        **{key: body.get(key) for key in SAME},
        **(PREFILLED if messages[-1]["role"] == "assistant" else {}),
        "messages": messages,
        "max_completion_tokens": body.get("max_tokens"),
        "stop": body.strings("stop_sequences"),
        **thinking(body),
        **tools(body),
    }


def thinking(body: Body) -> dict[str, object]:
    """How much to think, and whether to show it. Raises InvalidBody."""
    if (asked := body.nested("thinking")) is None:
        return {}
    kind = asked.get("type")
    if kind == "enabled":
        return {"thinking_token_budget": asked.get("budget_tokens")}
    if kind not in ("adaptive", "disabled"):
        raise InvalidBody("thinking.type", "must be adaptive, disabled or enabled")
    return {"include_reasoning": kind == "adaptive"}


def tools(body: Body) -> dict[str, object]:
    """What may be called. Raises InvalidBody."""
    chat: dict[str, object] = {}
    if body.get("tools") is not None:
        given = checked("tools", body.get("tools"), list)
        chat["tools"] = [tool(f"tools[{place}]", each) for place, each in enumerate(given)]
    if (choice := body.nested("tool_choice")) is not None:
        kind = choice.get("type")
        if kind == "tool":
            chat["tool_choice"] = {"type": "function", "function": {"name": choice.get("name")}}
        elif kind in CHOICES:
            chat["tool_choice"] = CHOICES[str(kind)]
        else:
            raise InvalidBody("tool_choice.type", f"must be {', '.join(CHOICES)} or tool")
        chat["parallel_tool_calls"] = not choice.flag("disable_parallel_tool_use")
    return chat


def tool(field: str, value: object) -> dict[str, object]:
    """One tool of the caller's own. Raises InvalidBody."""
    given = Body(checked(field, value, dict))
    if given.get("type") not in (None, "custom"):
        raise InvalidBody(f"{field}.type", "not supported; only tools of the caller are")
    function = {"name": given.get("name"), "parameters": given.get("input_schema")}
    function |= {key: given.get(key) for key in ("description", "strict") if given.get(key) is not None}
    return {"type": "function", "function": function}
