"""What was said so far, and how to go on: the request for the next answer.

Sans-IO. Knows nothing about terminals and about who answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from enginewire import v1 as pb
from enginewire.backend.commands.chat.options import ChatOptions
from enginewire.backend.commands.defaults import SAMPLING_FIELDS, STOP_FIELDS, default_request
from enginewire.backend.config import SamplingDefaults
from enginewire.options import OptionError
from enginewire.options.declaration import options_of

PARAMETERS = {
    option.name: option
    for option in options_of(SamplingDefaults)
    if option.name in (*STOP_FIELDS, *SAMPLING_FIELDS, "ignore_eos") and option.name != "n"
}
"""What can be changed during a chat: the options of the same names."""


class Conversation:
    """Messages and parameters. A question counts once its answer is there."""

    def __init__(self, options: ChatOptions) -> None:
        self.options = options
        self._messages: list[pb.ChatMessage] = []

    def request(self, question: str) -> pb.BackendServiceGenerateRequest:
        """What to ask for now."""
        asked = pb.BackendServiceGenerateRequest(request=default_request(self.options))
        if self.options.system:
            asked.chat.messages.add(role="system", content=self.options.system)
        asked.chat.messages.extend(self._messages)
        asked.chat.messages.add(role="user", content=question)
        return asked

    def answered(self, question: str, answer: str) -> None:
        """Remember both; an answer that was aborted counts as far as it came."""
        self._messages += [
            pb.ChatMessage(role="user", content=question),
            pb.ChatMessage(role="assistant", content=answer),
        ]

    def clear(self) -> None:
        """Forget what was said; parameters and instructions stay."""
        self._messages.clear()

    def stop_at(self, texts: list[str]) -> None:
        """These end an answer, and no others. Raises OptionError."""
        self.options = replace(self.options, stop=tuple(texts))

    def set_parameter(self, name: str, text: str) -> None:
        """Change one; an empty text leaves the choice to the engine again. Raises OptionError."""
        if name not in PARAMETERS:
            raise OptionError(f"{name}: allowed are {', '.join(PARAMETERS)}")
        option = PARAMETERS[name]
        try:
            value = option.kind.from_text(text) if text else option.default
        except OptionError as error:
            raise OptionError(f"{name}: {error}") from error
        changed: Mapping[str, Any] = {name: value}  # of the type that this option has
        self.options = replace(self.options, **changed)

    def parameters(self) -> list[tuple[str, str]]:
        """Every parameter with its value as text; empty where the engine chooses."""
        values = [(name, getattr(self.options, name)) for name in PARAMETERS]
        stop = ("stop", " ".join(map(repr, self.options.stop)))
        return [(name, "" if value is None else str(value).lower()) for name, value in values] + [stop]
