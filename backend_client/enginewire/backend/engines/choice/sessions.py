"""Which engine serves which session, for as long as the session is used.

Holds digests of session ids, never ids, and a bounded number of them. Knows nothing about load.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from enginewire.backend.engines.choice.routing_hints import Session

T = TypeVar("T")

MAX_SESSIONS: Final = 65_536


@dataclass(frozen=True, slots=True)
class Place(Generic[T]):
    """Who serves a session, and until when that is remembered unless it is used."""

    who: T
    expires_at: float


class Sessions(Generic[T]):
    """The open ones. Beyond `max_sessions` those used longest ago are forgotten."""

    def __init__(self, max_sessions: int = MAX_SESSIONS, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_sessions = max_sessions
        self._clock = clock
        self._places: OrderedDict[bytes, Place[T]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._places)

    def find(self, session: Session) -> T | None:
        """Who served the request before; nobody for one that opens the session anew."""
        place = self._places.get(session.key)
        if place is None or session.opens or self._has_expired(place):
            return None
        return place.who

    def keep(self, session: Session, who: T) -> None:
        """`who` serves it now."""
        self._places[session.key] = Place(who, self._clock() + session.timeout)
        self._places.move_to_end(session.key)
        while self._places and (len(self._places) > self._max_sessions or self._has_expired(self._oldest)):
            self._places.popitem(last=False)

    def end(self, session: Session) -> None:
        """A request of it has ended, perhaps the last one."""
        place = self._places.pop(session.key, None)
        if place is not None and not session.closes:
            self.keep(session, place.who)

    def forget(self, who: T) -> None:
        """Its sessions go on elsewhere."""
        for key in [key for key, place in self._places.items() if place.who is who]:
            del self._places[key]

    def _has_expired(self, place: Place[T]) -> bool:
        # Not `<=`: a time that is no number is over as well.
        return not self._clock() < place.expires_at

    @property
    def _oldest(self) -> Place[T]:
        return next(iter(self._places.values()))
