"""What a request is told whose rules have left it nothing to choose from.

What its lists forbid between them is the caller's contradiction, whether it shows at once or after some
tokens. Knows nothing about logits.
"""

from __future__ import annotations

from enginewire.server.failures import EngineError, InvalidRequest, StepFailed
from enginewire.torch_engine.requests.params import SamplingParams
from enginewire.torch_engine.requests.sequence import Request


def nothing_left(request: Request, what: str) -> EngineError:
    """The failure of a request that has no `what` left, such as "token"."""
    if any(each.matcher is not None and each.matcher.is_too_slow for each in request.unfinished):
        return StepFailed("the grammar is too slow to follow")
    field = _list_of(request.sampling)
    if field is None:
        return StepFailed(f"the grammar leaves no {what} to choose")
    others = " with its grammar" if request.guide else ""
    return InvalidRequest(f"{field}: the lists of the request{others} leave no {what} to choose", field=field)


def _list_of(sampling: SamplingParams) -> str | None:
    """The list of the caller's that forbids most."""
    if sampling.allowed_token_ids:
        return "sampling_options.allowed_token_ids"
    return "sampling_options.bad_words_token_ids" if sampling.bad_words else None
