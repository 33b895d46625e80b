"""Beam search: which beams of a request go on, and which are done.

The rules are those of `generate` in transformers with its defaults: of the best continuations of all
beams the `width` best that do not end go on; one that ends is a hypothesis if it is among the `width`
best of all; the search is over when no beam, at its present length, could beat the worst of `width`
hypotheses. Knows sequences; nothing about torch, queues, messages or threads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence as Seq
from dataclasses import dataclass, field
from heapq import merge
from math import exp, log

from enginewire.torch_engine.requests.candidates import Candidate
from enginewire.torch_engine.requests.params import BeamRules
from enginewire.torch_engine.requests.scores import Continuation
from enginewire.torch_engine.requests.sequence import Finish, Sequence

MAX_EXPONENT = 500.0
"""Keeps scores within what a float can hold, whatever the length penalty."""


@dataclass(frozen=True, slots=True)
class Successor:
    """A beam of the next step: one of this step and a token. `score` is that of all tokens together."""

    score: float
    parent: Sequence
    continuation: Continuation


@dataclass(slots=True)
class BeamSearch:
    """The search of one request. `hypotheses` are the best so far, best first."""

    rules: BeamRules
    hypotheses: list[Candidate] = field(default_factory=list)

    def advance(self, beams: Seq[Sequence]) -> list[Successor]:
        """The beams that go on, best first, once all know their continuations; none when it is over."""
        ranked = merge(*map(_successors, beams), key=lambda each: each.score, reverse=True)
        going: list[Successor] = []
        for rank, each in enumerate(ranked):
            if len(going) == self.rules.width:
                break
            finish = each.parent.finish_with(each.continuation.token_id)
            if finish is None:
                going.append(each)
            elif rank < self.rules.width:
                self.hypotheses.append(self._hypothesis(each, finish))
        self.hypotheses.sort(key=lambda hypothesis: -hypothesis.score)
        del self.hypotheses[self.rules.width :]
        return going if going and self._may_improve(going[0]) else []

    def _hypothesis(self, ended: Successor, finish: Finish) -> Candidate:
        parent, continuation = ended.parent, ended.continuation
        assert parent.beam is not None, "only beams have successors"
        rows = (continuation.logprobs,) if continuation.logprobs else ()
        tokens = [*parent.output_token_ids, continuation.token_id]
        return Candidate(self._normalised(ended), tokens, finish, parent.beam.logprobs + rows)

    def _may_improve(self, best: Successor) -> bool:
        is_full = len(self.hypotheses) == self.rules.width
        return not is_full or self._normalised(best) > self.hypotheses[-1].score

    def _normalised(self, successor: Successor) -> float:
        length = successor.parent.num_output_tokens + 1
        exponent = self.rules.length_penalty * log(length)
        return successor.score / exp(min(max(exponent, -MAX_EXPONENT), MAX_EXPONENT))

    @property
    def is_short(self) -> bool:
        """True when there are fewer hypotheses than the caller wants."""
        return len(self.hypotheses) < self.rules.n


def share_out(successors: Seq[Successor], beams: Seq[Sequence]) -> tuple[list[Sequence], list[Sequence]]:
    """Turn the beams into their successors; returns those that begin anew and those that are left over.

    The first successor of a beam takes its place, and with it what is computed. Every other one takes the
    place of a beam without successors, or is new.
    """
    heirs: dict[Sequence, Successor] = {}
    others: list[Successor] = []
    for each in successors:
        if each.parent in heirs:
            others.append(each)
        else:
            heirs[each.parent] = each
    vacant = [beam for beam in beams if beam not in heirs]
    request, free_index = beams[0].request, max(beam.index for beam in beams) + 1
    restarted: list[Sequence] = []
    for each in others:  # before the heirs: they begin with what their parents still are
        beam = vacant.pop() if vacant else Sequence(request, free_index + len(restarted))
        beam.continue_as(each.parent, each.continuation)
        restarted.append(beam)
    for parent, heir in heirs.items():
        parent.continue_as(parent, heir.continuation)
    request.sequences = [*heirs, *restarted, *vacant]
    return restarted, vacant


def _successors(beam: Sequence) -> Iterator[Successor]:
    """All of one beam, best first."""
    assert beam.beam is not None, "every sequence of a search is a beam"
    for continuation in beam.beam.continuations:
        yield Successor(beam.beam.score + continuation.score, beam, continuation)
