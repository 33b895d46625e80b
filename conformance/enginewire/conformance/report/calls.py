"""The calls of a check as a report shows them: times since the start of the call, limited in number.

Metadata is left out, because a user's own may be secret.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from enginewire.conformance.report.text import brief
from enginewire.conformance.running.outcome import UNEXPECTED, Outcome, Status
from enginewire.conformance.wire.exchange import Exchange

MOST_CALLS: Final = 6
MOST_MESSAGES: Final = 16
WIDTH: Final = 800

TRACED: Final = frozenset({*UNEXPECTED, Status.XFAIL})
"""Whose calls a report shows. All of them would be megabytes."""


@dataclass(frozen=True, slots=True)
class Received:
    """One message. `ms`: since the start of its call; `size` in bytes."""

    ms: float
    size: int
    text: str


@dataclass(frozen=True, slots=True)
class Call:
    """One call. `left_out`: how many messages between the first and the last ones are not shown."""

    method: str
    request: str
    messages: tuple[Received, ...]
    left_out: int
    ms: float
    status: str
    detail: str


def calls_of(outcome: Outcome) -> list[Call]:
    """The last calls of an outcome that needs an explanation."""
    return [call_of(exchange) for exchange in outcome.exchanges[-MOST_CALLS:]] if is_traced(outcome) else []


def is_traced(outcome: Outcome) -> bool:
    """True for what a reader wants to understand."""
    return outcome.status in TRACED


def call_of(exchange: Exchange, *, most: int = MOST_MESSAGES, width: int = WIDTH) -> Call:
    """One call with at most `most` messages: the first half and the last half of them."""
    shown = exchange.arrived
    if len(shown) > most:
        shown = shown[: most // 2] + shown[-most // 2 :]
    start = exchange.started_at
    return Call(
        method=exchange.method,
        request=brief(exchange.request, width),
        messages=tuple(
            Received((arrived.at - start) * 1e3, arrived.size, brief(arrived.message, width))
            for arrived in shown
        ),
        left_out=len(exchange.arrived) - len(shown),
        ms=((exchange.ended_at or start) - start) * 1e3,
        status=exchange.status,
        detail=brief(exchange.detail, width) if exchange.detail else "",
    )
