"""Whether engines die of a request, or only with it inside.

Holds the deaths that one request has met with and whom else they concerned. Knows nothing about streams,
and nothing about when a request is sent again.
"""

from __future__ import annotations

import time
from typing import Final, Protocol

# More than what is lost on its way when an engine dies: an answer that has gone on so far is not its cause.
PROGRESS_TOKENS: Final = 16
# Nor is a request that has been in an engine for so long: who waits behind it shall not wait for ever.
PROGRESS_SECONDS: Final = 300.0
# All that were in an engine hear of its death within this time.
SAME_DEATH_SECONDS: Final = 1.0


class Engine(Protocol):
    """What is remembered of an engine here.

    `casualties`: of the last death there the life, when that was first asked, and how many were in it.
    """

    in_flight: int
    suspects: set[Suspicion]
    casualties: tuple[str, float, int]


class Engines(Protocol):
    """Those whose deaths are counted."""

    def is_alive(self, lifetime_id: str) -> bool:
        """That life of one of them has not ended."""


class Answer(Protocol):
    """What the request has led to so far."""

    @property
    def num_passed_on(self) -> int:
        """Tokens of all choices."""


class Suspicion:
    """One request's. Of several that deaths concern nobody is blamed: then they are tried one by one."""

    __slots__ = (
        "_entered_at",
        "_is_on_trial",
        "_lives",
        "_max_deaths",
        "_num_tokens_then",
        "_was_alone",
        "answer",
    )

    def __init__(self, max_deaths: int) -> None:
        """`max_deaths` in a row are suspect. `answer` is to be set once there is one."""
        self.answer: Answer | None = None
        self._max_deaths = max_deaths
        self._num_tokens_then = 0
        self._entered_at = 0.0
        self._lives: list[tuple[Engines, str]] = []
        self._is_on_trial = False
        self._was_alone = True

    @property
    def _num_tokens(self) -> int:
        return 0 if self.answer is None else self.answer.num_passed_on

    @property
    def is_open(self) -> bool:
        """An engine has died with it inside, and its answer has not gone on since."""
        if not self._lives or time.monotonic() - self._entered_at >= PROGRESS_SECONDS:
            return False
        return self._num_tokens - self._num_tokens_then < PROGRESS_TOKENS

    def must_wait_for(self, engine: Engine) -> bool:
        """It is to be tried, and another one is being tried there."""
        return self._is_on_trial and any(
            other._is_on_trial and other.is_open for other in engine.suspects - {self}
        )

    def enter(self, engine: Engine) -> None:
        """The request is sent there."""
        self._num_tokens_then, self._entered_at = self._num_tokens, time.monotonic()
        if self._lives:
            engine.suspects.add(self)

    def leave(self, engine: Engine) -> None:
        """It is not there any more."""
        engine.suspects.discard(self)

    def is_alone(self, engine: Engine, life: str) -> bool:
        """No other request was in that life when it ended. Ask before any of them leaves."""
        now = time.monotonic()
        known, asked_at, count = engine.casualties
        if known != life or now - asked_at > SAME_DEATH_SECONDS:
            count = engine.in_flight
            engine.casualties = life, now, count
        return count <= 1

    def blame(self, engines: Engines, life: str, *, is_alone: bool) -> int:
        """That life has ended with it inside: 0, or how many did in a row if it has to be their cause."""
        if not self.is_open:
            self._lives.clear()
            self._is_on_trial, self._was_alone = False, True
        # A life that is still there was only cut off.
        deaths = 1 + sum(not those.is_alive(lost) for those, lost in self._lives)
        self._lives.append((engines, life))
        self._was_alone &= is_alone
        if deaths < self._max_deaths:
            return 0
        if self._was_alone or self._is_on_trial:
            return deaths
        self._is_on_trial = True
        return 0
