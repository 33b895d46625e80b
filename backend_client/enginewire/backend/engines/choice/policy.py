"""The choice of an engine: the session's, that of the routing key, one that has the prefix, the freest.

Knows nothing about how engines are reached and whether they could take the request.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Final, Protocol, TypeVar

from enginewire.backend.engines.choice.prefix_affinity import PrefixChain, PrefixMemory
from enginewire.backend.engines.choice.routing_hints import Hints
from enginewire.backend.engines.choice.sessions import Sessions

# How much more than the least burdened engine one may have that knows the beginning of the prompt: a request
# that waits and a quarter of the requests there, and a quarter of the cache.
WAITING_SLACK: Final = 1
REQUESTS_SLACK: Final = 0.25
KV_USE_SLACK: Final = 0.25


class Candidate(Protocol):
    """An engine that can take the request."""

    @property
    def target(self) -> str:
        """Its name, the same in every backend."""

    @property
    def burden(self) -> tuple[float, int]:
        """Smaller is better."""

    @property
    def waiting(self) -> int:
        """Requests that wait there."""

    @property
    def requests(self) -> int:
        """Requests that run or wait there."""

    @property
    def kv_use(self) -> float:
        """The part of the KV blocks that live requests hold, 0 to 1."""


C = TypeVar("C", bound=Candidate)


class Policy(Protocol[C]):
    """How engines are chosen."""

    def choose(self, free: Sequence[C], prefix: PrefixChain, hints: Hints) -> C:
        """One of `free`, which are never none."""

    def end(self, hints: Hints) -> None:
        """A request with these hints has ended."""

    def forget(self, engine: C) -> None:
        """It has left."""


class PrefixThenLoad(Policy[C]):
    """What a backend does."""

    def __init__(self) -> None:
        self._prefixes: PrefixMemory[C] = PrefixMemory()
        self._sessions: Sessions[C] = Sessions()

    def choose(self, free: Sequence[C], prefix: PrefixChain, hints: Hints) -> C:
        """See `Policy`."""
        best = self._of_session(free, hints)
        if best is None and hints.routing_key:
            best = max(free, key=lambda engine: weight(engine.target, hints.routing_key))
        best = best or self._least(free, prefix)
        if prefix:
            self._prefixes.remember(prefix, best)
        if hints.session is not None:
            self._sessions.keep(hints.session, best)
        return best

    def end(self, hints: Hints) -> None:
        """See `Policy`."""
        if hints.session is not None:
            self._sessions.end(hints.session)

    def forget(self, engine: C) -> None:
        """See `Policy`."""
        self._prefixes.forget(engine)
        self._sessions.forget(engine)

    def _of_session(self, free: Sequence[C], hints: Hints) -> C | None:
        known = self._sessions.find(hints.session) if hints.session is not None else None
        return known if known in free else None

    def _least(self, free: Sequence[C], prefix: PrefixChain) -> C:
        least = min(free, key=lambda engine: engine.burden)
        if not prefix:
            return least
        known = self._prefixes.find(prefix, lambda e: is_nearly_as_free(e, least) and e in free)
        return min(known, key=lambda engine: engine.burden) if known else least


def is_nearly_as_free(engine: Candidate, least: Candidate) -> bool:
    """It may be taken for another reason than its load."""
    slack = WAITING_SLACK + REQUESTS_SLACK * least.requests
    has_few = engine.waiting <= least.waiting + slack and engine.requests <= least.requests + slack
    return has_few and engine.kv_use <= least.kv_use + KV_USE_SLACK


def weight(target: str, key: str) -> bytes:
    """Rendezvous hashing: when an engine comes or goes, only its own keys move. The same in every backend."""
    return blake2b(f"{target}\0{key}".encode()).digest()
