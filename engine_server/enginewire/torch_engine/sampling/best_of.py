"""Choosing the best candidates of a request: nothing is delivered before all of them have ended.

Knows outputs and sequences; nothing about torch, queues or threads.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from enginewire import v1 as pb
from enginewire.torch_engine.requests.outputs import usage_of
from enginewire.torch_engine.requests.sequence import BestOf, Request, Sequence


@dataclass(slots=True)
class Candidates:
    """The outputs of every candidate so far."""

    wanted: BestOf
    outputs: dict[int, list[pb.LLMEngineOutput]] = field(default_factory=dict)

    def take(self, sequence: Sequence, output: pb.LLMEngineOutput) -> list[pb.LLMEngineOutput]:
        """Keep one output; after the last one, all that the caller gets, choice by choice, best first."""
        self.outputs.setdefault(sequence.index, []).append(output)
        return [] if sequence.request.unfinished else self._best(sequence.request)

    def _best(self, request: Request) -> list[pb.LLMEngineOutput]:
        if any(outputs[-1].finish_reason == pb.FINISH_REASON_CANCELLED for outputs in self.outputs.values()):
            chosen = [_cancelled() for _ in range(self.wanted.n)]
        else:
            # Among equals the first one, so that a result can be repeated.
            ranked = sorted(request.sequences, key=lambda sequence: -sequence.cum_log_prob)
            chosen = [self.outputs[sequence.index] for sequence in ranked[: self.wanted.n]]
        if not self.wanted.with_logprobs:
            chosen = [[_joined(outputs)] for outputs in chosen]
        for index, outputs in enumerate(chosen):
            for output in outputs:
                output.index = index
                output.ClearField("completion_usage")
        best = [output for outputs in chosen for output in outputs]
        returned = [[token for output in outputs for token in output.token_ids] for outputs in chosen]
        best[-1].completion_usage.CopyFrom(usage_of(request, returned))
        return best


def _joined(outputs: list[pb.LLMEngineOutput]) -> pb.LLMEngineOutput:
    """All tokens of a choice in one output, without log-probabilities."""
    joined = pb.LLMEngineOutput()
    for output in outputs:
        output.ClearField("logprobs")
        joined.MergeFrom(output)
    joined.ClearField("cum_log_probs")
    joined.first_output_position = 0
    return joined


def _cancelled() -> list[pb.LLMEngineOutput]:
    return [pb.LLMEngineOutput(finish_reason=pb.FINISH_REASON_CANCELLED)]
