"""Requests that wait for a slot of the engine, in an order that is fair to those who share it.

An engine's own queue takes whoever came first: behind one caller's 500 requests everybody waits. So what an
engine could not run yet waits here, and goes in when a slot is free: of the most urgent requests one of the
caller that has had the least service for its weight. Service is counted in tokens, beforehand as what a
request may take and afterwards as what it took. Knows nothing about what requests ask for.
"""

from __future__ import annotations

import heapq
import itertools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from enginewire.access.caller import Party

CLASS_SECONDS: Final = 60.0
MAX_CLASSES: Final = 60
"""As in the torch engine: a request of priority p counts as having come 60 s × p later, so that a more urgent
one goes first and nobody waits for ever."""
FIRST_GUESS: Final = 256.0
"""Tokens of a request of a party that is new here."""
STEP_PARTS: Final = 8
"""At most one in so many slots is filled for one step, where callers share the engine."""
MOST_PARTIES: Final = 4096
"""Beyond it, those are forgotten that have nothing here: tenants are named by others."""


@dataclass(eq=False, slots=True)
class Place:
    """One request: the `slots` it takes, and its `tokens` at most. `start` puts it into the engine.

    `moment` is when it came, on the clock of time.monotonic, later for the less urgent and earlier by its
    `priority_jump`.
    """

    party: Party
    slots: int
    tokens: int
    prompt_tokens: int
    start: Callable[[], None]
    priority: int = 0
    jump: float = 0.0
    came_at: float = field(default_factory=time.monotonic)
    is_waiting: bool = False
    is_closed: bool = False
    expected: float = 0.0

    @property
    def moment(self) -> float:
        """What it is ordered by among those of its party."""
        classes = min(max(self.priority, -MAX_CLASSES), MAX_CLASSES)
        return self.came_at - self.jump + CLASS_SECONDS * classes


class Share:
    """What one party has had, has in the engine, and has waiting: by priority, in order.

    `service` is in tokens by weight, and `expected` what its running requests may add to that. `typical` are
    the tokens of a request, as it has turned out so far.
    """

    __slots__ = (
        "expected",
        "num_waiting",
        "service",
        "slots",
        "typical",
        "waiting",
        "waiting_tokens",
        "weight",
    )

    def __init__(self, service: float) -> None:
        self.service = service
        self.expected = 0.0
        self.typical = FIRST_GUESS
        self.weight = 1.0
        self.slots = 0
        self.num_waiting = 0
        self.waiting_tokens = 0
        self.waiting: dict[int, list[tuple[float, int, Place]]] = {}

    @property
    def is_active(self) -> bool:
        """It has something here."""
        return bool(self.slots or self.num_waiting)

    def push(self, place: Place, serial: int) -> None:
        """One more waits."""
        heapq.heappush(self.waiting.setdefault(place.priority, []), (place.moment, serial, place))
        place.is_waiting = True
        self.num_waiting += 1
        self.waiting_tokens += place.prompt_tokens

    def take_out(self, place: Place) -> None:
        """It waits no more."""
        entries = self.waiting[place.priority]
        if entries[0][2] is place:
            heapq.heappop(entries)
        else:
            entries[:] = [entry for entry in entries if entry[2] is not place]
            heapq.heapify(entries)
        if not entries:
            del self.waiting[place.priority]
        place.is_waiting = False
        self.num_waiting -= 1
        self.waiting_tokens -= place.prompt_tokens

    def heads(self) -> tuple[Place, Place]:
        """Of those that wait the most urgent, and the one that has waited longest for its priority."""
        urgent = self.waiting[min(self.waiting)][0][2]
        return urgent, min(entries[0] for entries in self.waiting.values())[2]


class FairQueue:
    """The slots of one engine, and who waits for them."""

    def __init__(self, max_share: float = 1.0, known_parties: int = 0) -> None:
        """`max_share` is the part of slots and queue that one party may have, where there are several."""
        self.num_slots: int | None = None
        self.num_used = 0
        self.num_waiting = 0
        self._max_share = max_share
        self._is_shared = known_parties > 1
        self._shares: dict[str, Share] = {}
        self._serial = itertools.count()
        # The least service of whoever was here: who comes back after a pause has not saved any up.
        self._floor = 0.0

    @property
    def waiting_tokens(self) -> int:
        """Of the prompts that wait."""
        return sum(share.waiting_tokens for share in self._shares.values()) if self.num_waiting else 0

    def waiting_of(self, party: Party) -> tuple[int, int]:
        """Requests of a party that wait, and the tokens of their prompts."""
        share = self._shares.get(party.key)
        return (share.num_waiting, share.waiting_tokens) if share else (0, 0)

    def part_for_one(self, whole: int) -> int:
        """So much of the whole as one party may have; all of it until there is another."""
        return max(1, int(whole * self._max_share)) if self._is_shared else whole

    def would_wait(self, place: Place) -> bool:
        """True unless it may start at once. Who is told apart from nobody never waits here."""
        share = self._share(place.party)
        return bool(place.party.key) and (bool(share.num_waiting) or not self._fits(place, share))

    def take(self, place: Place) -> None:
        """Give it its slots."""
        share = self._share(place.party)
        self._rise(share)
        share.weight = place.party.allowance.weight
        place.expected = min(place.tokens, max(share.typical, place.prompt_tokens)) / share.weight
        share.slots += place.slots
        share.expected += place.expected
        self.num_used += place.slots

    def wait(self, place: Place) -> None:
        """Let it wait for its turn."""
        share = self._share(place.party)
        self._rise(share)
        share.push(place, next(self._serial))
        self.num_waiting += 1

    def free(self, place: Place, slots: int) -> None:
        """So many choices of a request that was started have ended."""
        slots = min(slots, place.slots)
        place.slots -= slots
        self.num_used -= slots
        self._share(place.party).slots -= slots

    def leave(self, place: Place, tokens: int | None) -> None:
        """A request has ended, wherever it was, having used so many tokens (None:

        nobody knows). Once is enough.
        """
        if place.is_closed:
            return
        place.is_closed = True
        share = self._share(place.party)
        if place.is_waiting:
            share.take_out(place)
            self.num_waiting -= 1
        else:
            self.free(place, place.slots)
            self._settle(place, share, tokens)
        if len(self._shares) > MOST_PARTIES:
            self._shares = {key: each for key, each in self._shares.items() if each.is_active}

    def start_next(self) -> None:
        """Start whoever may run now. Call it when slots are free again, and after each step.

        Where callers share the engine, only some of the slots are filled for one step: a step with many
        prompts takes long, and whoever comes meanwhile waits for it.
        """
        num_started = 0
        while self.num_waiting and num_started < self._most_started():
            if (place := self._next()) is None:
                return
            self._share(place.party).take_out(place)
            self.num_waiting -= 1
            self.take(place)
            place.start()
            # What the engine has refused brings no step after which the next ones would start.
            num_started += not place.is_closed

    def _most_started(self) -> float:
        if not self._is_shared or self.num_slots is None:
            return math.inf
        return max(1, self.num_slots // STEP_PARTS)

    def _settle(self, place: Place, share: Share, tokens: int | None) -> None:
        share.expected -= place.expected
        share.service += place.expected if tokens is None else tokens / share.weight
        if tokens is not None:
            share.typical += (tokens - share.typical) / 8
        self._floor = max(self._floor, self._least_service(share.service))

    def _rise(self, share: Share) -> None:
        if not share.is_active:
            share.service = max(share.service, self._least_service(self._floor))

    def _least_service(self, otherwise: float) -> float:
        return min((each.service for each in self._shares.values() if each.is_active), default=otherwise)

    def _next(self) -> Place | None:
        """Of the most urgent ones that of the party with the least service, unless another has waited too
        long.

        A party whose most urgent request does not fit has no other started in its place.
        """
        parties = []
        for share in self._shares.values():
            if share.num_waiting and self._fits((heads := share.heads())[0], share):
                parties.append((share, *heads))
        if not parties:
            return None
        priority = min(urgent.priority for _, urgent, _ in parties)
        oldest_share, _, oldest = min(parties, key=lambda party: party[2].moment)
        if oldest.priority != priority and self._fits(oldest, oldest_share):
            return oldest
        return min(
            (
                (share.service + share.expected, urgent.moment, index, urgent)
                for index, (share, urgent, _) in enumerate(parties)
                if urgent.priority == priority
            ),
        )[3]

    def _fits(self, place: Place, share: Share) -> bool:
        """A request with more choices than there are free slots goes in, as into an engine's own queue."""
        if self.num_slots is None:
            return True
        if self.num_used >= self.num_slots:
            return False
        return not share.slots or share.slots + place.slots <= self.part_for_one(self.num_slots)

    def _share(self, party: Party) -> Share:
        share = self._shares.get(party.key)
        if share is None:
            share = self._shares[party.key] = Share(self._floor)
            self._is_shared = self._is_shared or len(self._shares) > 1
        return share
