"""The ids of requests that are not in the engine: those that have ended, and those aborted before they came.

Bounded, the oldest go first. Knows nothing about requests.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import TypeVar

Value = TypeVar("Value")

# An abort may overtake its request by a network round trip, not by minutes.
REMEMBER_ABORTS_SECONDS = 10.0
REMEMBERED_IDS = 4096


class RememberedIds:
    """What is still known of requests that are not live."""

    def __init__(self) -> None:
        self._finished: OrderedDict[str, None] = OrderedDict()
        self._early_aborts: OrderedDict[str, float] = OrderedDict()

    def finish(self, request_id: str) -> None:
        """The request has ended."""
        self._finished[request_id] = None
        _trim(self._finished)

    def has_finished(self, request_id: str) -> bool:
        """True for a request that ended not long ago."""
        return request_id in self._finished

    def abort_early(self, request_id: str) -> None:
        """An abort came before its request did."""
        self._early_aborts[request_id] = time.monotonic() + REMEMBER_ABORTS_SECONDS
        _trim(self._early_aborts)

    def was_aborted_early(self, request_id: str) -> bool:
        """True once for a request whose abort came shortly before it."""
        return self._early_aborts.pop(request_id, 0.0) > time.monotonic()


def _trim(remembered: OrderedDict[str, Value]) -> None:
    while len(remembered) > REMEMBERED_IDS:
        remembered.popitem(last=False)
