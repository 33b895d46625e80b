"""What a chat template is given: messages, tools, and variables of its own.

Sans-IO. Refuses what the model's template does not know, because it would be ignored. Knows nothing
about answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from enginewire.backend.frontends.http_api.body import Body, InvalidBody
from enginewire.backend.frontends.http_api.openai.answers.format import ModelFormats
from enginewire.backend.frontends.http_api.openai.conversation.images import take_images
from enginewire.backend.frontends.http_api.openai.conversation.messages import read_messages
from enginewire.backend.frontends.http_api.openai.tools.fields import TOOLS, AskedTools
from enginewire.backend.prompting.conversation import Conversation, Message

DEVELOPER: Final = "developer"
EVERYWHERE: Final = ("system", "user", "assistant", "tool")
ROLES: Final = (DEVELOPER, *EVERYWHERE)
# Fields of their own.
RESERVED: Final = frozenset({"add_generation_prompt", "documents", "messages", "tools"})
VARIABLES: Final = "chat_template_kwargs"
EFFORT: Final = "reasoning_effort"
EFFORTS: Final = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
# What templates call thinking that can be left out.
THINKING_SWITCH: Final = "enable_thinking"
CONTINUE: Final = "continue_final_message"
ADD_PROMPT: Final = "add_generation_prompt"
CONVERSATION: Final = (ADD_PROMPT, CONTINUE, EFFORT, VARIABLES)


def read_conversation(body: Body, formats: ModelFormats, tools: AskedTools | None) -> Conversation:
    """Everything that becomes the prompt. Raises InvalidBody."""
    messages, images = take_images(read_messages(body), are_shown=formats.shows_images)
    messages = with_known_roles(messages, formats)
    check_tools(messages, tools, formats)
    goes_on = body.flag(CONTINUE)
    if goes_on and body.flag(ADD_PROMPT):
        raise InvalidBody(CONTINUE, f"not allowed beside {ADD_PROMPT}")
    return Conversation(
        messages,
        None if tools is None else [tool.definition for tool in tools.tools],
        {**read_effort(body, formats), **read_variables(body, formats)},
        add_generation_prompt=not goes_on and (body.get(ADD_PROMPT) is None or body.flag(ADD_PROMPT)),
        continue_final_message=goes_on,
        images=images,
    )


def with_known_roles(messages: Sequence[Message], formats: ModelFormats) -> Sequence[Message]:
    """The same, with `developer` as the `system` that templates know. Raises InvalidBody for other roles.

    A template may have more than OpenAI; one that it does not name would become a user's or nobody's.
    """
    others = {str(message["role"]) for message in messages}.difference(EVERYWHERE)
    named = {role for role in others if any(f"{mark}{role}{mark}" in formats.template for mark in "'\"")}
    for place, message in enumerate(messages):
        if message["role"] in others - named - {DEVELOPER}:
            raise InvalidBody(f"messages[{place}].role", f"must be one of {', '.join(ROLES)}")
    older = {} if DEVELOPER in named else {DEVELOPER: "system"}
    return [{**message, "role": older.get(str(message["role"]), message["role"])} for message in messages]


def check_tools(messages: Sequence[Message], tools: AskedTools | None, formats: ModelFormats) -> None:
    """Raise InvalidBody for tools that the template would not show."""
    if tools is not None and TOOLS not in formats.variables:
        raise InvalidBody(TOOLS, "the model's chat template does not show tools")
    for place, message in enumerate(messages):
        if "tool_calls" in message and "tool_calls" not in formats.template:
            raise InvalidBody(f"messages[{place}].tool_calls", "the model's chat template does not show them")
        if message["role"] == "tool" and "tool" not in formats.template:
            raise InvalidBody(f"messages[{place}].role", "the model's chat template does not know tool")


def read_variables(body: Body, formats: ModelFormats) -> dict[str, object]:
    """What else the template reads. Raises InvalidBody."""
    given = body.nested(VARIABLES)
    variables = {} if given is None else dict(given.items())
    for key in variables:
        if key in RESERVED or key.endswith("_token") or key not in formats.variables:
            raise InvalidBody(f"{VARIABLES}.{key[:40]}", "the model's chat template does not read it")
    return variables


def read_effort(body: Body, formats: ModelFormats) -> dict[str, object]:
    """How much to think, as the template calls it. Raises InvalidBody."""
    effort = body.text(EFFORT)
    if effort is None:
        return {}
    if effort not in EFFORTS:
        raise InvalidBody(EFFORT, f"must be one of {', '.join(EFFORTS)}")
    if EFFORT in formats.variables:
        return {EFFORT: effort}
    if effort == "none" and THINKING_SWITCH in formats.variables:
        return {THINKING_SWITCH: False}
    raise InvalidBody(EFFORT, "the model's chat template does not read it")
