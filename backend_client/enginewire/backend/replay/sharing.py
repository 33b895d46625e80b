"""What callers of a backend may have of it, and in whose name it asks engines. Knows nothing about faces."""

from __future__ import annotations

from collections.abc import Mapping

import grpc

from enginewire import v1 as pb
from enginewire.access.access import TENANT_KEY
from enginewire.access.caller import caller
from enginewire.access.meters import Meters, Need, OverLimit, Ticket
from enginewire.backend.engines.failure import Failure, RequestFailed


def take(meters: Meters, need: Need) -> Ticket:
    """Let a request of the current caller in. Raises RequestFailed."""
    try:
        return meters.take(caller().party, need)
    except OverLimit as over:
        raise RequestFailed(
            Failure(
                grpc.StatusCode.RESOURCE_EXHAUSTED.value[0],
                pb.ERROR_REASON_QUEUE_FULL,
                str(over),
                retryable=over.retry_after is not None,
                retry_after=over.retry_after,
                caller_limit=over.limit,
            )
        ) from over


def need_of(request: pb.PreprocessedRequest) -> Need:
    """What a request takes of its caller's limits.

    How long an answer without `max_tokens` can become, only the engine knows: its prompt counts alone here.
    """
    options, stop = request.sampling_options, request.stop_conditions
    num_choices = max(options.n, options.best_of, 1)
    num_prompt = len(request.token_ids)
    return Need(num_choices, num_prompt, num_prompt + num_choices * stop.max_tokens, request.is_probe)


def in_name_of_caller(metadata: Mapping[str, str] | None) -> Mapping[str, str] | None:
    """The metadata of a call, with the caller's name as the tenant where callers are told apart."""
    party = caller().party
    if not party.tenant:
        return metadata
    return {**(metadata or {}), TENANT_KEY: party.tenant}
