"""The body of a response, read as that of a chat completion.

Sans-IO. Holds what the two call differently and what only a server that stores answers can do. Knows
nothing about answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Final

from enginewire.backend.frontends.http_api.body import Body, InvalidBody, checked
from enginewire.backend.frontends.http_api.openai.answers.format import ModelFormats
from enginewire.backend.frontends.http_api.openai.chat import ChatEndpoint
from enginewire.backend.frontends.http_api.openai.fields.generation import Neutral, refuse_unsupported
from enginewire.backend.frontends.http_api.openai.fields.tokenizer import ALL_THERE_IS_ROOM_FOR
from enginewire.backend.frontends.http_api.openai.generation_request import GenerationRequest
from enginewire.backend.frontends.http_api.openai.tools.fields import CHOICE, PARALLEL, TOOLS
from enginewire.backend.frontends.http_api.responses.input_items import read_messages
from enginewire.backend.frontends.http_api.responses.tools import chat_tools, response_field

LOGPROBS: Final = "message.output_text.logprobs"
TRUNCATIONS: Final = ("disabled", "auto")
# What would change the answer and cannot be done here. Below the line: what belongs to other routes.
UNSUPPORTED: Final[Neutral] = {
    "access_programs": (),
    "background": (False,),
    "background_options": ({},),
    "context_management": ([],),
    "conversation": (),
    "enable_response_messages": (False,),
    "image": ({},),
    "max_tool_calls": (),
    "moderation": (),
    "previous_input_messages": ([],),
    "previous_response": (),
    "previous_response_id": (),
    "prompt": (),
    # ---
    "best_of": (1,),
    "echo": (False,),
    "logprobs": (False,),
    "max_completion_tokens": (),
    "max_tokens": (),
    "messages": (),
    "n": (1,),
    "prompt_logprobs": (),
    "response_format": (),
    "return_token_ids": (False,),
}
READ_HERE: Final = frozenset(
    {
        *UNSUPPORTED,
        "include",
        "input",
        "instructions",
        "max_output_tokens",
        "reasoning",
        "stream_options",
        "text",
        "tool_choice",
        "tools",
        "top_logprobs",
        "truncation",
    }
)
# Key of a chat completion → key of a response.
RENAMED: Final = {
    "max_completion_tokens": "max_output_tokens",
    "messages": "input",
    "reasoning_effort": "reasoning.effort",
    "response_format": "text.format",
    "truncate_prompt_tokens": "truncation",
}
PARAMS: Final = {
    "chat": "input",
    "chat.messages": "input",
    "token_ids": "input",
    "stop_conditions.max_tokens": "max_output_tokens",
    "output_options.logprobs": "top_logprobs",
}


@dataclass(frozen=True, slots=True)
class ResponseRequest(GenerationRequest):
    """One HTTP request. `told` is what the answer repeats of it."""

    told: Mapping[str, object] = field(default_factory=dict)


def read_request(body: Body, formats: ModelFormats) -> ResponseRequest:
    """Raises InvalidBody."""
    refuse_unsupported(body, UNSUPPORTED)
    chat = {key: value for key, value in body.items() if key not in READ_HERE}
    try:
        asked = ChatEndpoint(formats).read(Body(chat | as_chat(body)))
    except InvalidBody as error:
        raise InvalidBody(renamed(error.field), error.message) from error
    params = {path: renamed(field) for path, field in asked.params.items()} | PARAMS
    known = {each.name: getattr(asked, each.name) for each in fields(asked)}
    return ResponseRequest(**known | {"params": params}, told=told(body))


def renamed(field: str) -> str:
    """What a field of a chat completion is called here. An item may be several messages, or a part of one."""
    key = field.partition("[")[0]
    return RENAMED.get(key) or response_field(field)


def as_chat(body: Body) -> dict[str, object]:
    """What a chat completion calls otherwise. Raises InvalidBody."""
    options = body.nested("stream_options")
    if options is not None and not body.flag("stream"):
        raise InvalidBody("stream_options", "only allowed when stream is true")
    truncation = body.text("truncation") or TRUNCATIONS[0]
    if truncation not in TRUNCATIONS:
        raise InvalidBody("truncation", f"must be {' or '.join(TRUNCATIONS)}")
    chat: dict[str, object] = {
        "messages": read_messages(body),
        "max_completion_tokens": body.integer("max_output_tokens"),
        "response_format": read_format(body),
        "reasoning_effort": read_effort(body),
        **read_logprobs(body),
        **chat_tools(body),
    }
    if truncation == "auto":
        chat["truncate_prompt_tokens"] = ALL_THERE_IS_ROOM_FOR
    return chat


def read_logprobs(body: Body) -> dict[str, object]:
    """Raises InvalidBody."""
    included = body.strings("include")
    for place, what in enumerate(included):
        if what != LOGPROBS:
            raise InvalidBody(f"include[{place}]", f"not supported; only {LOGPROBS} is")
    top = body.integer("top_logprobs")
    if top and not included:
        raise InvalidBody("top_logprobs", f"only allowed when include has {LOGPROBS}")
    return {"logprobs": bool(included), "top_logprobs": top}


def read_effort(body: Body) -> str | None:
    """How much to think. Raises InvalidBody."""
    if (reasoning := body.nested("reasoning")) is None:
        return None
    for key, value in reasoning.items():
        if key != "effort" and value is not None:
            raise InvalidBody(f"reasoning.{key[:40]}", "not supported")
    effort = reasoning.get("effort")
    return None if effort is None else checked("reasoning.effort", effort, str)


def read_format(body: Body) -> dict[str, object] | None:
    """`text.format`, which is flat, as the `response_format` that it is in chat. Raises InvalidBody."""
    text = body.nested("text")
    if text is None:
        return None
    if text.get("verbosity") not in (None, "medium"):
        raise InvalidBody("text.verbosity", 'not supported; only "medium" is')
    if (given := text.get("format")) is None:
        return None
    form = checked("text.format", given, dict)
    if form.get("type") not in ("text", "json_object", "json_schema"):
        raise InvalidBody("text.format.type", "must be text, json_object or json_schema")
    return {"type": form["type"], "json_schema": {"schema": form.get("schema")}}


def told(body: Body) -> dict[str, object]:
    """What the answer says about its request; the defaults are the engine's where they are null."""
    text = body.nested("text")
    return {
        "background": False,
        "instructions": body.text("instructions"),
        "max_output_tokens": body.integer("max_output_tokens"),
        "metadata": {} if body.nested("metadata") is None else body.get("metadata"),
        "parallel_tool_calls": body.get(PARALLEL) is None or body.flag(PARALLEL),
        "previous_response_id": None,
        "reasoning": {"effort": read_effort(body), "summary": None},
        "service_tier": "default",
        "store": False,
        "temperature": body.number("temperature"),
        "text": {"format": (text.get("format") if text is not None else None) or {"type": "text"}},
        "tool_choice": body.get(CHOICE) or "auto",
        "tools": body.get(TOOLS) or [],
        "top_logprobs": body.integer("top_logprobs") or 0,
        "top_p": body.number("top_p"),
        "truncation": body.text("truncation") or TRUNCATIONS[0],
        "user": body.text("user"),
    }
