"""Drafters that know what will be chosen, and say it, or half of it, or something else."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from random import Random

from enginewire.torch_engine.requests.sequence import Request
from enginewire.torch_engine.runner.statistics import DraftStatistics
from enginewire.torch_engine.scheduling.drafting.drafter import Drafting
from tests.torch_engine.tiny import VOCAB, CoreUnderTest

LONGEST = 7
KINDS = ("right", "half", "wrong")
Answers = dict[tuple[tuple[int, ...], int], list[int]]
"""The whole output of each choice, by prompt and index."""


class KnowingDrafter:
    """Drafts what `answer` says, wrong from a drawn place on where `kind` is half."""

    def __init__(self, kind: str, answer: Seq[int], num_prompt: int) -> None:
        self.num_drafted = self.num_accepted = 0
        self.judged: list[tuple[int, int]] = []
        self._kind, self._answer, self._num_prompt = kind, answer, num_prompt
        self._random = Random(num_prompt)

    def propose(self, token_ids: Seq[int], most: int, num_sampled: int) -> list[int]:
        begin = len(token_ids) - self._num_prompt
        found = list(self._answer[begin : begin + min(most, LONGEST)])
        if not found:  # behind what was seen
            return [self._random.randrange(VOCAB)] if most else []
        first_wrong = {"right": len(found), "half": self._random.randint(0, len(found)), "wrong": 0}
        place = first_wrong[self._kind]
        return found[:place] + [(token + 1) % VOCAB for token in found[place:]]

    def note(self, num_drafted: int, num_right: int) -> None:
        self.judged.append((num_drafted, num_right))


class KnowingDrafting(Drafting):
    """Gives every choice its drafter."""

    def __init__(self, kind: str, answers: Answers) -> None:
        super().__init__(LONGEST, (1, 1), 0.1)
        self._kind, self._answers = kind, answers
        self.drafters: list[KnowingDrafter] = []

    def start(self, request: Request) -> None:
        super().start(request)
        for sequence in request.sequences:
            if sequence.drafter is not None:
                answer = self._answers.get((tuple(request.prompt_token_ids), sequence.index), [])
                sequence.drafter = KnowingDrafter(self._kind, answer, len(request.prompt_token_ids))
                self.drafters.append(sequence.drafter)


def draft_with(engine: CoreUnderTest, kind: str, answers: Answers) -> KnowingDrafting:
    """Let an engine that was loaded without drafts have such ones."""
    drafting = KnowingDrafting(kind, answers)
    engine.core.scheduler.drafting = drafting
    engine.core.statistics.drafts = DraftStatistics(LONGEST)
    return drafting
