"""Targets with little room for requests: how many checks they bear, and what a refusal for want of room says.

Knows no requirement.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import grpc

from enginewire import v1 as pb
from enginewire.conformance.running.outcome import Outcome, Status
from enginewire.conformance.session.sizes import USUAL_WINDOW, room_of
from enginewire.conformance.wire.exchange import Exchange

CONCURRENCY: Final = 8
OF_EACH: Final = 4
"""Requests that a check has at the target at the same time, where it does not look at its room."""

TOKENS_OF_EACH: Final = 1024
"""Of their prompts."""

LONGEST: Final = 2
"""Prompts as long as the window that wait at the same time at most."""

WRONG: Final = frozenset({Status.FAIL, Status.WARN})

FULL: Final = grpc.StatusCode.RESOURCE_EXHAUSTED


def num_together(config: pb.EngineConfig) -> int:
    """Checks that run at the same time: fewer where a target soon refuses requests for want of room."""
    rooms = [CONCURRENCY]
    if room := room_of(config):
        rooms.append(room // OF_EACH)
    if config.limits.HasField("max_num_queued_tokens"):
        rooms.append(config.limits.max_num_queued_tokens // TOKENS_OF_EACH)
    return max(min(rooms), 1)


def found_no_room(outcome: Outcome) -> bool:
    """A failure beside a refusal: who comes when the queue is full may be refused."""
    was_refused = outcome.seen.startswith(FULL.name) or any(map(_is_refused, outcome.exchanges))
    return outcome.status in WRONG and was_refused


def excused(outcome: Outcome, config: pb.EngineConfig) -> Outcome:
    """The same outcome, but no failure for want of room where there is less of it than checks need."""
    if not _has_little_room(config) or not found_no_room(outcome):
        return outcome
    limits = config.limits
    waiting = {"requests": limits.max_num_queued_reqs, "prompt tokens": limits.max_num_queued_tokens}
    most = " and ".join(f"{number} {what}" for what, number in waiting.items() if number)
    message = f"a request found no room: at most {most} wait here"
    return replace(outcome, status=Status.NOT_APPLICABLE, message=message, expected="", seen="")


def _has_little_room(config: pb.EngineConfig) -> bool:
    window = config.context_length if config.HasField("context_length") else USUAL_WINDOW
    bounded = config.limits.HasField("max_num_queued_tokens")
    holds_few = bounded and config.limits.max_num_queued_tokens < LONGEST * window
    return holds_few or num_together(config) < CONCURRENCY


def _is_refused(exchange: Exchange) -> bool:
    frames = (each for each in exchange.messages if isinstance(each, pb.GenerateMultiplexedResponse))
    ends = (event.status.code for frame in frames for event in frame.events)
    return exchange.code is FULL or FULL.value[0] in ends
