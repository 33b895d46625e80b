"""Targets with little room for requests: how many checks they bear, and what a refusal for want of room says.

Knows no requirement.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import grpc

from enginewire import v1 as pb
from enginewire.conformance.running.outcome import Outcome, Status
from enginewire.conformance.session.sizes import room_of
from enginewire.conformance.wire.exchange import Exchange

CONCURRENCY: Final = 8
OF_EACH: Final = 4
"""Requests that a check has at the target at the same time, where it does not look at its room."""

WRONG: Final = frozenset({Status.FAIL, Status.WARN})

FULL: Final = grpc.StatusCode.RESOURCE_EXHAUSTED


def num_together(config: pb.EngineConfig) -> int:
    """Checks that run at the same time: fewer where a target soon refuses requests for want of room."""
    room = room_of(config)
    return max(min(CONCURRENCY, room // OF_EACH), 1) if room else CONCURRENCY


def found_no_room(outcome: Outcome) -> bool:
    """A failure beside a refusal: who comes when the queue is full may be refused."""
    was_refused = outcome.seen.startswith(FULL.name) or any(map(_is_refused, outcome.exchanges))
    return outcome.status in WRONG and was_refused


def excused(outcome: Outcome, config: pb.EngineConfig) -> Outcome:
    """The same outcome, but no failure for want of room where there is less of it than checks need."""
    if num_together(config) == CONCURRENCY or not found_no_room(outcome):
        return outcome
    message = f"a request found no room: {room_of(config)} run and wait here at the same time"
    return replace(outcome, status=Status.NOT_APPLICABLE, message=message, expected="", seen="")


def _is_refused(exchange: Exchange) -> bool:
    frames = (each for each in exchange.messages if isinstance(each, pb.GenerateMultiplexedResponse))
    ends = (event.status.code for frame in frames for event in frame.events)
    return exchange.code is FULL or FULL.value[0] in ends
