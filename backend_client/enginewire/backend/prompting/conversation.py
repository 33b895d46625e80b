"""A conversation with everything that a chat template can be given.

Holds how an answer goes on with the last message, and what a template gets of images. Knows nothing about
tokenizers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from enginewire import v1 as pb
from enginewire.backend.prompting.chat_template import ChatTemplate, ChatTemplateError, text_part

Message = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Image:
    """One of a conversation; `field` is what its caller calls it."""

    item: pb.MultiModalItem
    field: str


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages, oldest first, as templates read them: `role`, `content`, `tool_calls`, …

    `content` is a text, or a list of parts where some are `images`, which come in the same order. `tools` are
    functions as OpenAI describes them, `variables` what else the template may read. With
    `continue_final_message` the prompt ends where the last message does.
    """

    messages: Sequence[Message]
    tools: Sequence[Mapping[str, object]] | None = None
    variables: Mapping[str, object] = field(default_factory=dict)
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    images: Sequence[Image] = ()

    @property
    def num_characters(self) -> int:
        """How much text there is to tokenize, about."""
        return sum(len(str(message.get("content"))) for message in self.messages) + (
            len(str(self.tools)) if self.tools else 0
        )

    def render(self, template: ChatTemplate) -> str:
        """The prompt. Raises ChatTemplateError."""
        text = template.render(
            [in_parts(each) for each in self.messages] if template.needs_parts else self.messages,
            add_generation_prompt=self.add_generation_prompt and not self.continue_final_message,
            tools=self.tools,
            variables=self.variables,
        )
        return self._up_to_final_message(text) if self.continue_final_message else text

    def _up_to_final_message(self, text: str) -> str:
        """Without what the template writes behind the last message. Templates may strip messages."""
        content = last_text(self.messages[-1])
        place = text.rfind(content.strip())
        if not content.strip() or place < 0:
            raise ChatTemplateError("the chat template does not show the last message, which is to go on")
        whole = content.lstrip()
        kept = whole if text.startswith(whole, place) else content.strip()
        return text[: place + len(kept)]


def in_parts(message: Message) -> Message:
    """The same with a list for its content."""
    content = message.get("content")
    return {**message, "content": [text_part(content)]} if isinstance(content, str) else message


def last_text(message: Message) -> str:
    """What a message ends with; "" when that is no text."""
    content = message.get("content")
    part = content[-1] if isinstance(content, list) and content else {"text": content}
    return str(part.get("text") or "")
