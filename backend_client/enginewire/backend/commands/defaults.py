"""From the options of a command to the fields of a request.

Sans-IO. Knows nothing about prompts.
"""

from __future__ import annotations

from typing import Final

from enginewire import v1 as pb
from enginewire.backend.config import SamplingDefaults

STOP_FIELDS: Final = ("max_tokens", "min_tokens")
SAMPLING_FIELDS: Final = ("temperature", "top_p", "top_k", "min_p", "seed", "n")


def default_request(options: SamplingDefaults) -> pb.PreprocessedRequest:
    """A request with every option that was set; unset ones leave the choice to the engine."""
    request = pb.PreprocessedRequest()
    for message, names in (
        (request.stop_conditions, STOP_FIELDS),
        (request.sampling_options, SAMPLING_FIELDS),
    ):
        for name in names:
            if (value := getattr(options, name)) is not None:
                setattr(message, name, value)
    if options.stop:
        request.stop_conditions.stop.extend(options.stop)
    if options.ignore_eos:
        request.stop_conditions.ignore_eos = True
    return request


def with_defaults(
    request: pb.PreprocessedRequest, defaults: pb.PreprocessedRequest
) -> pb.PreprocessedRequest:
    """`request` with the defaults where it says nothing. Its own stop strings replace the default ones."""
    merged = pb.PreprocessedRequest()
    merged.CopyFrom(defaults)
    if request.stop_conditions.stop:
        merged.stop_conditions.ClearField("stop")
    merged.MergeFrom(request)
    return merged
