"""One engine of a backend, as last heard of. Knows nothing about the others."""

from __future__ import annotations

import contextlib
import logging
from typing import Final

import grpc

from enginewire import v1 as pb
from enginewire.backend.engines.connection.client import EngineClient
from enginewire.backend.engines.failure import RequestFailed
from enginewire.backend.engines.load_fields import kv_use
from enginewire.backend.engines.suspicion import Suspicion

log = logging.getLogger(__name__)

# An engine that does not say within this time that it is still there is not.
GONE_SECONDS: Final = 1.0
# An engine that has cancelled something has just spoken: one that is slow to say why is busy, not gone.
BUSY_SECONDS: Final = 5.0
# An engine that nobody watches, or that cannot be watched, is taken to be there.
USABLE: Final = frozenset({pb.ENGINE_STATE_READY, pb.ENGINE_STATE_UNSPECIFIED})

MOST_REASONS: Final = 4
"""Of one outage. gRPC may say the same in ever other words."""


class Endpoint:
    """One engine, as last heard of."""

    def __init__(self, client: EngineClient, number: int = 0) -> None:
        """`number` tells it from all others that this backend has ever had."""
        self.client = client
        self.number = number
        self.outage = Outage(client.target)
        self.load = pb.Load()
        # None: it has none, or has not said so yet.
        self.worker_id: int | None = None
        self.is_identified = False
        self._identified_life = ""
        # It serves something else than the others.
        self.is_foreign = False
        # Requests of this backend; the load reported last knows about `_in_flight_then` of them.
        self.in_flight = 0
        self._in_flight_then = 0
        # Requests that were in an engine which died; and of the last death here the life, when that was
        # first asked, and how many requests were in it.
        self.suspects: set[Suspicion] = set()
        self.casualties = "", 0.0, 0

    @property
    def is_usable(self) -> bool:
        """It takes requests, as far as is known."""
        return self.load.state in USABLE and not self.is_foreign

    @property
    def is_draining(self) -> bool:
        """It finishes what it has and takes nothing more."""
        return self.load.state == pb.ENGINE_STATE_DRAINING

    @property
    def target(self) -> str:
        """Its name as gRPC spells it."""
        return self.client.target

    @property
    def load(self) -> pb.Load:
        """As last reported."""
        return self._load

    @load.setter
    def load(self, load: pb.Load) -> None:
        # Each choice reads these of every engine, a report comes now and then.
        self._load, self.kv_use, self._waiting = load, kv_use(load), load.waiting
        self._requests = load.running + load.waiting

    @property
    def burden(self) -> tuple[float, int]:
        """Smaller is better: what waits there, cache in use, and what this backend has sent since."""
        return self.waiting + self.kv_use, self.in_flight

    @property
    def waiting(self) -> int:
        """What waits there, and what this backend has sent since that was reported."""
        return self._waiting + self.in_flight - self._in_flight_then

    @property
    def requests(self) -> int:
        """What runs or waits there, and what this backend has sent since that was reported."""
        return max(0, self._requests + self.in_flight - self._in_flight_then)

    async def has_handed_back(self, lifetime_id: str) -> bool:
        """What that life of the engine has cancelled unasked can go on elsewhere: it drains or is over.

        The watched load may not say so yet, so the engine is asked.
        """
        if self.is_draining:
            return True
        try:
            load = await self.client.load(BUSY_SECONDS)
        except RequestFailed as failure:
            return failure.code is not grpc.StatusCode.UNIMPLEMENTED
        return load.state not in USABLE or load.engine_lifetime_id != lifetime_id

    async def identify(self) -> None:
        """Learn who it is, once for each of its lives, if it can be asked now."""
        if self.is_identified or not self.is_usable:
            return
        with contextlib.suppress(RequestFailed):
            info = await self.client.info(GONE_SECONDS)
            self.worker_id = info.worker_id if info.HasField("worker_id") else None
            self.is_identified, self._identified_life = True, info.engine_lifetime_id

    def heard(self, load: pb.Load) -> None:
        """It reported."""
        if self.is_identified and load.engine_lifetime_id not in ("", self._identified_life):
            self.is_identified = False
            self.client.forget()
        self.load = load
        self._in_flight_then = self.in_flight

    def lost(self) -> None:
        """It does not answer."""
        self.load = pb.Load(state=pb.ENGINE_STATE_DEAD)


class Outage:
    """What the log says of an engine that does not answer: why, each reason once, and that it is back.

    An engine that has not answered yet is none of that: it may still be starting.
    """

    def __init__(self, target: str) -> None:
        self._target = target
        self._has_answered = False
        self._reasons: set[str] = set()

    def goes_on(self, why: str) -> None:
        """It did not answer once more."""
        if self._has_answered and why not in self._reasons and len(self._reasons) < MOST_REASONS:
            self._reasons.add(why)
            log.warning("the engine at %s does not answer: %s", self._target, why)

    def ends(self) -> None:
        """It answers, whatever it says."""
        self._has_answered = True
        if self._reasons:
            self._reasons.clear()
            log.info("the engine at %s answers again", self._target)
