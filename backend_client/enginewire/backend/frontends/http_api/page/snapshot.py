"""The state of a backend and its engines as JSON fields: what the page and curious programs look at.

Sans-IO. Holds no prompt and no text. Knows nothing about when or to whom it is sent.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Final

from enginewire import v1 as pb
from enginewire.backend.activity.activity import Activity
from enginewire.backend.activity.live_request import EndedRequest, LiveRequest
from enginewire.backend.backend import Backend
from enginewire.backend.engines.endpoint import Endpoint
from enginewire.backend.engines.load_fields import load_fields
from enginewire.metrics.histogram import Histogram

# More rows than anyone reads; bounds what one look costs.
MAX_ROWS: Final = 200


def snapshot(backend: Backend, loads: Mapping[Endpoint, pb.Load]) -> dict[str, object]:
    """Everything at this moment, `at` in seconds of a clock of its own; `loads` are those of the engines."""
    live = backend.activity.live
    return {
        "at": time.monotonic(),
        "engines": [engine_fields(*each) for each in loads.items()],
        "requests": request_rows(live),
        "num_requests": len(live),
        "ended": ended_rows(backend.activity.ended),
        "totals": total_fields(backend.activity),
    }


def engine_fields(endpoint: Endpoint, load: pb.Load) -> dict[str, object]:
    """What an engine reports; `in_flight` are this backend's requests."""
    return load_fields(endpoint.client.target, load) | {"in_flight": endpoint.in_flight}


def request_rows(live: Sequence[LiveRequest]) -> list[dict[str, object]]:
    """The oldest requests. Times in seconds."""
    now = time.monotonic()
    return [
        {
            **row(request),
            "phase": request.phase,
            "max_tokens": request.max_tokens,
            "withheld": request.num_withheld,
            "age": now - request.began_at,
        }
        for request in live[:MAX_ROWS]
    ]


def ended_rows(ended: Sequence[EndedRequest]) -> list[dict[str, object]]:
    """The requests that ended last. `seconds` is how long each took, `ago` when it ended."""
    now = time.monotonic()
    return [
        {
            **row(request),
            "outcome": request.outcome,
            "seconds": request.seconds,
            "ago": now - request.ended_at,
        }
        for request in ended
    ]


def row(request: LiveRequest | EndedRequest) -> dict[str, object]:
    """What is told of a request, whether it lives or not. Times in seconds."""
    return {
        "id": request.request_id,
        "face": request.face,
        "engine": request.target,
        "attempts": request.num_attempts,
        "prompt_tokens": request.num_prompt_tokens,
        "tokens": request.num_tokens,
        "choices": request.num_choices,
        "ttft": request.ttft,
    }


def total_fields(activity: Activity) -> dict[str, object]:
    """Since this process began; rates and means are differences between two looks."""
    totals = activity.totals
    return {
        "ttft": histogram_fields(totals.first_token),
        "itl": histogram_fields(totals.between_tokens),
        "prompt_tokens": totals.prompt_tokens,
        "generated_tokens": activity.generated_tokens,
        "finished": dict(totals.finished),
        "failed": sum(totals.failed.values()),
        "retries": totals.retries,
        "continuations": totals.continuations,
    }


def histogram_fields(histogram: Histogram) -> dict[str, object]:
    """Enough for a mean."""
    return {"sum": histogram.sum, "count": histogram.count}
