"""A server that drafts: a step has the tokens, too, that its text foretells, as long as they are right."""

from __future__ import annotations

from collections import Counter
from typing import Final

from enginewire import v1 as pb
from enginewire.conformance.reference.generation.job import Choice, Job
from enginewire.conformance.reference.server import Reference

LOOKED_UP: Final = 3
"""The last tokens that a draft goes by."""
DRAFTED: Final = 5


class Drafting(Reference):
    """A draft is what followed the last tokens when they stood there first."""

    def __init__(self) -> None:
        super().__init__()
        self.accepted = Counter[Choice]()

    def draft(self, choice: Choice) -> list[int]:
        """The tokens that may come next; empty where nothing says."""
        # A character for a token: nothing is searched faster.
        text = "".join(map(chr, (*choice.job.request.token_ids, *choice.tokens)))
        place = text.find(text[-LOOKED_UP:], 0, len(text) - 1)
        behind = place + LOOKED_UP
        return [] if place < 0 else [*map(ord, text[behind : behind + DRAFTED])]

    def advance(self, choice: Choice) -> pb.LLMEngineOutput:
        """All tokens of a step in one output."""
        draft = self.draft(choice)
        output = super().advance(choice)
        for token in draft:
            if choice.is_finished or choice.tokens[-1] != token:
                break
            self.accepted[choice] += 1
            _extend(output, self.advance_behind(choice))
        return output

    def advance_behind(self, choice: Choice) -> pb.LLMEngineOutput:
        """One token more, behind one that was foretold."""
        return super().advance(choice)

    def usage(self, job: Job) -> pb.CompletionUsage:
        """With the tokens that were foretold."""
        usage = super().usage(job)
        accepted = sum(self.accepted[choice] for choice in job.choices)
        usage.completion_tokens_details.accepted_prediction_tokens = accepted
        return usage


def _extend(output: pb.LLMEngineOutput, more: pb.LLMEngineOutput) -> None:
    """Positions are of the first token, lists and texts grow, and of the rest the last counts."""
    position, text = output.first_output_position, output.text + more.text
    output.MergeFrom(more)
    output.first_output_position = position
    if output.HasField("text"):
        output.text = text
