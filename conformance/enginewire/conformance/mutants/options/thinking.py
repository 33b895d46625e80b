"""Servers that count the tokens of thinking sections wrongly."""

from __future__ import annotations

from enginewire.conformance.mutants import mutant
from enginewire.conformance.reference.generation.job import Choice
from enginewire.conformance.reference.server import Reference


@mutant("thinking_is_not_limited", kills="STP-09")
class ThinkingIsNotLimited(Reference):
    def thought(self, choice: Choice) -> int | None:
        return None


@mutant("thinking_of_all_sections_counts", kills="STP-09")
class ThinkingOfAllSectionsCounts(Reference):
    """The limit is used up by the first section."""

    def thought(self, choice: Choice) -> int | None:
        count, (opening, closing) = super().thought(choice), self.settings.thinking_token_ids
        before = choice.tokens.index(closing) if closing in choice.tokens else 0
        return None if count is None else count + choice.tokens[:before].count(opening)


@mutant("thinking_in_prompts_is_not_seen", kills="STP-09")
class ThinkingInPromptsIsNotSeen(Reference):
    """A section that the prompt has left open is taken for none."""

    def thought(self, choice: Choice) -> int | None:
        return super().thought(choice) if self.settings.thinking_token_ids[0] in choice.tokens else None
