"""The ids of requests that are not in the engine: those that have ended, and those aborted before they came.

Bounded, the oldest go first. Knows nothing about requests.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import TypeVar

from enginewire.access.caller import Caller

Key = TypeVar("Key")
Value = TypeVar("Value")

# An abort may overtake its request by a network round trip, not by minutes.
REMEMBER_ABORTS_SECONDS = 10.0
REMEMBERED_IDS = 4096


class RememberedIds:
    """What is still known of requests that are not live, and whose they are."""

    def __init__(self) -> None:
        # By id: the owner.
        self._finished: OrderedDict[str, str] = OrderedDict()
        # By who asked, None for an admin, and by id.
        self._early_aborts: OrderedDict[tuple[str | None, str], float] = OrderedDict()

    def finish(self, request_id: str, owner: str) -> None:
        """The request has ended."""
        self._finished[request_id] = owner
        _trim(self._finished)

    def owner(self, request_id: str) -> str | None:
        """Whose request it was that ended not long ago; None when there was none."""
        return self._finished.get(request_id)

    def abort_early(self, request_id: str, asking: Caller) -> None:
        """An abort came before its request did."""
        of_whom = None if asking.is_admin else asking.identity
        self._early_aborts[of_whom, request_id] = time.monotonic() + REMEMBER_ABORTS_SECONDS
        _trim(self._early_aborts)

    def was_aborted_early(self, request_id: str, owner: str) -> bool:
        """True once for a request whose abort came shortly before it, from its owner or an admin."""
        ends = [self._early_aborts.pop((of_whom, request_id), 0.0) for of_whom in (owner, None)]
        return max(ends) > time.monotonic()


def _trim(remembered: OrderedDict[Key, Value]) -> None:
    while len(remembered) > REMEMBERED_IDS:
        remembered.popitem(last=False)
