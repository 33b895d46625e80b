"""Whether a request may come in, and when it goes into the engine: limits of queue and callers, and turns.

Where callers are told apart, what the engine could not run yet waits here. Elsewhere it waits in the engine's
own queue. Knows nothing about the table of live requests and about gRPC.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from enginewire import v1 as pb
from enginewire.access.meters import Meters, Need, OverLimit
from enginewire.server.admission.live import Live
from enginewire.server.admission.queue.fair_queue import FairQueue, Place
from enginewire.server.admission.queue.limits import QueueLimits, Room, over_limit, queue_full
from enginewire.server.engines.interface import StepEngine
from enginewire.server.failures import DeadlineExceeded, EngineError, NotAllowed
from enginewire.server.status import as_failure


class Work(Protocol):
    """What is done for a request, which the engine has not heard of before `start`."""

    @property
    def need(self) -> Need:
        """What it takes."""
        ...

    @property
    def routing(self) -> pb.RoutingHints:
        """Its priority."""
        ...

    @property
    def may_wait(self) -> bool:
        """Whether it may wait outside of the engine."""
        ...

    def start(self) -> None:
        """Put it into the engine. Raises EngineError."""
        ...

    def check(self) -> None:
        """Raise EngineError if the engine can already say that it would refuse it."""
        ...

    def cancelled(self) -> Iterable[pb.LLMEngineOutput]:
        """Its terminal outputs, if it has not been started."""
        ...


@dataclass(frozen=True, slots=True)
class Waiting:
    """A request that the engine has not heard of."""

    work: Work
    deadline: asyncio.TimerHandle | None


class Turns:
    """The way of each request into one engine."""

    def __init__(
        self, limits: QueueLimits, queue: FairQueue | None, fail: Callable[[Live, EngineError], None]
    ) -> None:
        """`fail` ends a request that was let in and could not be started."""
        self.limits = limits
        self.meters = Meters()
        self._queue = queue or FairQueue()
        self._fail = fail
        self._engine: StepEngine | None = None
        self._max_num_seqs = 1
        self._num_finished = 0
        self._places: dict[Live, Place] = {}
        self._waiting: dict[Live, Waiting] = {}

    def open(self, engine: StepEngine, config: pb.EngineConfig) -> None:
        """From now on requests are for this engine."""
        self._engine, self._max_num_seqs = engine, config.max_num_seqs or 1
        self._queue.num_slots = config.max_num_seqs or None

    def take(self, live: Live, work: Work, others: Collection[Live]) -> None:
        """Let a request in: it goes into the engine now, or when it is its turn.

        `others` are in already, in the order in which they came. Raises EngineError, then nothing has
        happened.
        """
        place = _place_of(live, work, partial(self._start_later, live))
        waits = self._must_wait(place, work, others)
        try:
            live.ticket = self.meters.take(live.party, work.need)
        except OverLimit as over:
            raise over_limit(over) from over
        try:
            work.check() if waits else work.start()
        except Exception:
            live.ticket.undo()
            raise
        self._places[live] = place
        if waits:
            self._waiting[live] = Waiting(work, self._timer(live))
            self._queue.wait(place)
        else:
            self._queue.take(place)

    def cancelled(self, live: Live) -> Iterable[pb.LLMEngineOutput] | None:
        """The end of a request that waits here; None for one that the engine has to end."""
        waiting = self._waiting.get(live)
        return None if waiting is None else waiting.work.cancelled()

    @property
    def waiting(self) -> list[Live]:
        """Those that the engine has not heard of, in the order in which they came."""
        return list(self._waiting)

    def choice_ended(self, live: Live) -> None:
        """Its slot is free.

        Of a request that was ended here, the engine's own end comes later and frees nothing.
        """
        place = self._places.get(live)
        if place is not None and not live.hidden_choices:
            self._queue.free(place, 1)

    def ended(self, live: Live, usage: pb.CompletionUsage) -> None:
        """A request has ended, wherever it was. Who goes next is started by `start_next`."""
        self._num_finished += 1
        self._stop_waiting(live)
        is_known = usage.total_tokens > 0
        live.ticket.close(usage.completion_tokens if is_known else live.num_tokens)
        self._queue.leave(self._places.pop(live), usage.total_tokens if is_known else None)

    def start_next(self) -> None:
        """Start those that wait, as far as there are slots."""
        if self._waiting:
            self._queue.start_next()

    def add_to(self, load: pb.Load) -> None:
        """What waits here is in the engine's load like what waits there.

        What has ended is counted here: an engine need not count, and never heard of what ended in the queue.
        """
        load.requests_finished = self._num_finished
        load.waiting += self._queue.num_waiting
        load.waiting_tokens += self._queue.waiting_tokens
        if load.ranks:
            # No rank has been chosen yet; the sum over all ranks shall be what waits.
            load.ranks[0].waiting += self._queue.num_waiting

    def _start_later(self, live: Live) -> None:
        work = self._stop_waiting(live)
        assert work is not None, "the queue starts what waits"
        try:
            work.start()
        except Exception as error:  # noqa: BLE001  # an engine's refusal, or its bug: its request ends
            self._fail(live, as_failure(error))

    def _stop_waiting(self, live: Live) -> Work | None:
        if (waiting := self._waiting.pop(live, None)) is None:
            return None
        if waiting.deadline is not None:
            waiting.deadline.cancel()
        return waiting.work

    def _timer(self, live: Live) -> asyncio.TimerHandle | None:
        """The engine minds the deadlines of those that it has heard of."""
        if live.context.deadline is None:
            return None
        wait = max(live.context.deadline - time.monotonic(), 0.0)
        late = partial(self._fail, live, DeadlineExceeded("the deadline passed in the queue"))
        return asyncio.get_running_loop().call_later(wait, late)

    def _must_wait(self, place: Place, work: Work, others: Collection[Live]) -> bool:
        """Raises QueueFull and NotAllowed."""
        assert self._engine is not None, "requests are let in when there is an engine"
        if not (place.party.key and work.may_wait):
            Room(self.limits, self._max_num_seqs, others).check(self._engine, place.prompt_tokens)
            return False
        _check_priority(place)
        waits = self._queue.would_wait(place)
        if waits:
            self._check_waiting(place)
        return waits

    def _check_waiting(self, place: Place) -> None:
        queue, limits = self._queue, self.limits
        mine, my_tokens = queue.waiting_of(place.party)
        allowed = place.party.allowance.max_waiting_requests
        if allowed is not None and mine >= allowed:
            raise over_limit(
                OverLimit("max_waiting_requests", f"you have {mine} requests waiting", mine, allowed, 1.0)
            )
        if queue.num_waiting >= limits.requests:
            raise queue_full("requests", queue.num_waiting, limits.requests)
        if mine >= (most := queue.part_for_one(limits.requests)):
            raise queue_full("requests of yours", mine, most)
        if queue.waiting_tokens + place.prompt_tokens > limits.tokens:
            raise queue_full("tokens", queue.waiting_tokens, limits.tokens)
        if my_tokens + place.prompt_tokens > (most := queue.part_for_one(limits.tokens)):
            raise queue_full("tokens of yours", my_tokens, most)


def _place_of(live: Live, work: Work, start: Callable[[], None]) -> Place:
    need, routing = work.need, work.routing
    priority, jump = routing.priority, routing.priority_jump
    return Place(live.party, need.requests, need.tokens, need.prompt_tokens, start, priority, jump)


def _check_priority(place: Place) -> None:
    least = place.party.allowance.min_priority
    if least is None or (place.priority >= least and place.jump <= 0):
        return
    field = "routing.priority" if place.priority < least else "routing.priority_jump"
    allowed = f"a priority of {least} or more, without a jump"
    raise NotAllowed(f"{field}: more urgent than your requests may be, allowed {allowed}", field=field)
