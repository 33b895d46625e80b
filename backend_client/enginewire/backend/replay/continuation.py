"""Whether another engine can go on with an answer so that nobody can tell, and what any engine is asked.

Reads requests and what engines say of themselves. Knows nothing about streams, attempts or text.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, Literal

from enginewire import v1 as pb
from enginewire.backend.decoding.request_decoder import RequestDecoder
from enginewire.backend.engines.likeness import model_of
from enginewire.backend.prompting.annotations import without

# What is about text: the contract's class BACKEND.
TEXT_FIELDS: Final[
    dict[Literal["stop_conditions", "sampling_options", "output_options"], tuple[str, ...]]
] = {
    "stop_conditions": ("stop",),
    "sampling_options": ("include_stop_str_in_output",),
    "output_options": ("skip_special_tokens", "formatted_prompt", "return_tokens_as_token_ids"),
}


def cut_to_engine_part(request: pb.PreprocessedRequest, capabilities: pb.Capabilities) -> None:
    """Take out of `request` what only a backend can honour, unless the engine honours it too."""
    if capabilities.stop_strings:
        return
    for owner, names in TEXT_FIELDS.items():
        if request.HasField(owner):
            for name in names:
                getattr(request, owner).ClearField(name)


def cut_to_rest(
    request: pb.PreprocessedRequest,
    decoder: RequestDecoder,
    answered: Collection[str],
    attempt: int,
    origin_lifetime_id: str,
) -> None:
    """Make of `request` what is left of it. `answered`: keys of annotations, as the caller has them.

    `attempt` and `origin_lifetime_id` are for the engine that goes on behind what was delivered.
    """
    choices = decoder.resume()
    request.ClearField("resume")
    if has_delivered(decoder):
        request.resume.attempt = attempt
        request.resume.origin_lifetime_id = origin_lifetime_id
        request.resume.choices.extend(choices)
    if decoder.has_prompt_logprobs:
        request.output_options.ClearField("prompt_logprobs")
    if answered:
        request.annotations[:] = without(request.annotations, answered)


def needs_seed(request: pb.PreprocessedRequest, capabilities: pb.Capabilities) -> bool:
    """A request that could not be continued without one."""
    return capabilities.resume and capabilities.seed and is_drawn(request, capabilities)


def is_drawn(request: pb.PreprocessedRequest, capabilities: pb.Capabilities) -> bool:
    """Tokens are drawn with random numbers that only the engine knows."""
    options = request.sampling_options
    if options.HasField("seed"):
        return False
    if options.HasField("temperature"):
        return options.temperature > 0
    return not capabilities.HasField("default_sampling") or capabilities.default_sampling.temperature > 0


def can_continue(request: pb.PreprocessedRequest, capabilities: pb.Capabilities) -> bool:
    """Another engine can go on with an answer of one that can do this, token for token.

    Not with candidates that were never shown, and not with a hand-off, which can be used once.
    """
    options = request.sampling_options
    return (
        (capabilities.resume or _is_the_models_own(request))
        and not is_drawn(request, capabilities)
        and not options.use_beam_search
        and options.best_of <= max(1, options.n)
        and not request.HasField("prefill_result")
    )


def goes_on_like(
    origin: pb.GetEngineInfoResponse, info: pb.GetEngineInfoResponse, request: pb.PreprocessedRequest
) -> bool:
    """The second engine goes on as the first one would have, as far as engines tell."""
    if _is_the_models_own(request):
        return info.config.capabilities.resume and _conditions(origin) == _conditions(info)
    return _character(origin) == _character(info)


def _is_the_models_own(request: pb.PreprocessedRequest) -> bool:
    """The answer depends on the model alone, whatever engine computes it: no random numbers, no grammar."""
    options = request.sampling_options
    is_greedy = options.HasField("temperature") and options.temperature == 0
    return is_greedy and not options.HasField("guided_decoding")


def _character(info: pb.GetEngineInfoResponse) -> tuple[object, ...]:
    return info.engine_name, info.config.capabilities.resume, *_conditions(info)


def _conditions(info: pb.GetEngineInfoResponse) -> tuple[object, ...]:
    """What decides answers to requests that leave things out, and when they end."""
    config = info.config
    defaults = config.capabilities.default_sampling.SerializeToString(deterministic=True)
    return config.context_length, defaults, *model_of(info)


def has_delivered(decoder: RequestDecoder) -> bool:
    """The caller has seen something that must not be said again."""
    return any(choice.token_ids or choice.is_finished for choice in decoder.choices)
