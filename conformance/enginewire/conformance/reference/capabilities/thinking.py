"""Thinking of the reference: sections between two tokens, which a request may limit."""

from __future__ import annotations

from enginewire.conformance.reference.generation.job import Choice
from enginewire.conformance.reference.generation.model import Model


class Thinking(Model):
    """Closes a section that is as long as it may be."""

    def next_token(self, choice: Choice, logits: list[float]) -> int:
        """Whatever else is asked for."""
        conditions = choice.job.request.stop_conditions
        if conditions.HasField("max_thinking_tokens"):
            count = self.thought(choice)
            if count is not None and count >= conditions.max_thinking_tokens:
                return self.settings.thinking_token_ids[1]
        return super().next_token(choice, logits)

    def thought(self, choice: Choice) -> int | None:
        """The generated tokens of the section that is open; None where none is."""
        opening, closing = self.settings.thinking_token_ids
        prompt = choice.job.request.token_ids
        count = None
        for place, token in enumerate((*prompt, *choice.tokens)):
            if count is None:
                count = 0 if token == opening else None
            elif token == closing:
                count = None
            elif place >= len(prompt):
                count += 1
        return count
