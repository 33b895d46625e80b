"""A conversation with everything that a chat template can be given.

Holds how an answer goes on with the last message. Knows nothing about tokenizers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from enginewire.backend.prompting.chat_template import ChatTemplate, ChatTemplateError

Message = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages, oldest first, as templates read them: `role`, `content`, `tool_calls`, …

    `tools` are functions as OpenAI describes them, `variables` what else the template may read. With
    `continue_final_message` the prompt ends where the last message does.
    """

    messages: Sequence[Message]
    tools: Sequence[Mapping[str, object]] | None = None
    variables: Mapping[str, object] = field(default_factory=dict)
    add_generation_prompt: bool = True
    continue_final_message: bool = False

    @property
    def num_characters(self) -> int:
        """How much text there is to tokenize, about."""
        return sum(len(str(message.get("content"))) for message in self.messages) + (
            len(str(self.tools)) if self.tools else 0
        )

    def render(self, template: ChatTemplate) -> str:
        """The prompt. Raises ChatTemplateError."""
        text = template.render(
            self.messages,
            add_generation_prompt=self.add_generation_prompt and not self.continue_final_message,
            tools=self.tools,
            variables=self.variables,
        )
        return self._up_to_final_message(text) if self.continue_final_message else text

    def _up_to_final_message(self, text: str) -> str:
        """Without what the template writes behind the last message. Templates may strip messages."""
        content = str(self.messages[-1].get("content") or "")
        place = text.rfind(content.strip())
        if not content.strip() or place < 0:
            raise ChatTemplateError("the chat template does not show the last message, which is to go on")
        whole = content.lstrip()
        kept = whole if text.startswith(whole, place) else content.strip()
        return text[: place + len(kept)]
