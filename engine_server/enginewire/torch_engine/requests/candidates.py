"""Requests that compute more choices than they return: beam search, and the best of several samples.

Reads their rules from a message. Knows nothing about how they are searched or compared.
"""

from __future__ import annotations

from dataclasses import dataclass

from enginewire import v1 as pb
from enginewire.server.failures import Unsupported
from enginewire.torch_engine.requests.limits import check
from enginewire.torch_engine.requests.params import BeamRules
from enginewire.torch_engine.requests.scores import RowLogprobs
from enginewire.torch_engine.requests.sequence import BestOf, Finish


@dataclass(frozen=True, slots=True)
class Candidate:
    """A choice that ended; its `score` decides whether it is returned. `finish` None: it was cancelled."""

    score: float
    token_ids: list[int]
    finish: Finish | None
    logprobs: tuple[RowLogprobs, ...] = ()


def read_beams(message: pb.PreprocessedRequest) -> BeamRules | None:
    """The beam search that a request asks for. Raises InvalidRequest and Unsupported."""
    options = message.sampling_options
    penalty = options.length_penalty if options.HasField("length_penalty") else 1.0
    if not options.use_beam_search:
        check("sampling_options.length_penalty", penalty == 1.0, "is for beam search only")
        return None
    for field, is_set in _senseless_in_beams(options):
        check(f"sampling_options.{field}", not is_set, "has no meaning in a beam search")
    for field, is_set in _missing_in_beams(message):
        if is_set:
            raise Unsupported(f"{field}: not supported in a beam search", field=field)
    n = max(options.n, 1)
    width = options.best_of if options.HasField("best_of") else n
    return BeamRules(width, n, penalty)


def _senseless_in_beams(options: pb.SamplingOptions) -> list[tuple[str, bool]]:
    """Options that choose at random, and whether each of them is set to do so."""
    return [
        ("temperature", options.HasField("temperature") and options.temperature not in (0.0, 1.0)),
        ("top_p", options.HasField("top_p") and options.top_p != 1.0),
        ("top_k", options.top_k > 0),
        ("min_p", options.min_p != 0.0),
        ("seed", options.HasField("seed")),
    ]


def _missing_in_beams(message: pb.PreprocessedRequest) -> list[tuple[str, bool]]:
    return [
        ("sampling_options.guided_decoding", message.sampling_options.HasField("guided_decoding")),
        ("stop_conditions.max_thinking_tokens", message.stop_conditions.HasField("max_thinking_tokens")),
        ("resume.choices", any(c.finished or c.generated_token_ids for c in message.resume.choices)),
    ]


def read_best_of(message: pb.PreprocessedRequest) -> BestOf | None:
    """How many candidates are compared for how many choices, if that is more. Raises Unsupported."""
    options, output = message.sampling_options, message.output_options
    n = options.n if options.HasField("n") else 1
    if not options.HasField("best_of") or options.best_of == n:
        return None
    # Nothing is delivered before the choice is made: there is no state to continue from.
    if any(choice.finished or choice.generated_token_ids for choice in message.resume.choices):
        field = "sampling_options.best_of"
        raise Unsupported(f"{field}: above n it cannot be resumed", field=field)
    return BestOf(n, output.HasField("logprobs") or bool(output.logprob_token_ids))
