"""What the steps have to say to callers, until somebody takes it.

Knows sequences and messages; nothing about torch, queues or threads.
"""

from __future__ import annotations

from enginewire import v1 as pb
from enginewire.server.engines.interface import GenerateContext
from enginewire.server.failures import EngineError
from enginewire.torch_engine.embedding_waits import CoreOutputs
from enginewire.torch_engine.requests.outputs import add_prompt_logprobs
from enginewire.torch_engine.requests.sequence import Request, Sequence
from enginewire.torch_engine.sampling.best_of import Candidates


class Outbox:
    """Plain tokens in columns, outputs with more than that, failures and vectors."""

    def __init__(self) -> None:
        self._outputs = CoreOutputs(step=0)
        self._candidates: dict[Request, Candidates] = {}

    @property
    def has_news(self) -> bool:
        """True when somebody waits for an end."""
        return bool(self._outputs.outputs or self._outputs.failures)

    def take(self, step: int) -> CoreOutputs:
        """What came in since the last call, as that of `step`."""
        outputs, self._outputs = self._outputs, CoreOutputs(step=step)
        outputs.step = step
        return outputs

    def open(self, request: Request) -> None:
        """Outputs of this request will come in."""
        if request.best_of:
            self._candidates[request] = Candidates(request.best_of)

    def close(self, request: Request) -> None:
        """No more of them."""
        self._candidates.pop(request, None)

    def add_token(self, sequence: Sequence) -> None:
        """The last token of a sequence, of which nothing else is to be told."""
        out = self._outputs
        out.contexts.append(sequence.request.context)
        out.indexes.append(sequence.index)
        out.positions.append(sequence.num_output_tokens - 1)
        out.token_ids.append(sequence.token_ids[-1])

    def add_output(self, sequence: Sequence, output: pb.LLMEngineOutput) -> None:
        """An output of a sequence; those of candidates stay until the best ones are known."""
        candidates = self._candidates.get(sequence.request)
        self.add_outputs(sequence.request, candidates.take(sequence, output) if candidates else [output])

    def add_outputs(self, request: Request, outputs: list[pb.LLMEngineOutput]) -> None:
        """Outputs in the order of delivery; the prompt's log-probabilities travel with the first."""
        for first in outputs[:1]:
            _add_prompt_scores(request, first)
        self._outputs.outputs += [(request.context, output) for output in outputs]

    def add_vector(self, context: GenerateContext, vector: list[float]) -> None:
        """The vector of an input."""
        self._outputs.vectors.append((context, vector))

    def add_failure(self, context: GenerateContext, error: EngineError) -> None:
        """A request has failed."""
        self._outputs.failures.append((context, error))


def _add_prompt_scores(request: Request, output: pb.LLMEngineOutput) -> None:
    """Put them on the first output of the first choice, unless that was cancelled without any."""
    scores = request.prompt_scores
    if scores is not None and output.index == 0 and scores.is_complete:
        add_prompt_logprobs(output, scores)
        request.prompt_scores = None
