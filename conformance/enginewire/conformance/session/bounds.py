"""How long things may take at this target: measured first, never guessed.

A bound is a floor or a multiple of what was measured, whichever is larger, times the user's
`--time-scale`. All values are seconds.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from enginewire import v1 as pb
from enginewire.conformance.wire.client import Client
from enginewire.conformance.wire.stream import Stream
from enginewire.conformance.wire.violation import Violation

LEAST_LOOKS: Final = 25
"""At something that is polled, before it is late."""

MEASURED_REQUESTS: Final = 3
MEASURED_TOKENS: Final = 16

FIRST_TOKEN_SECONDS: Final = 60.0
"""For the first token. Whoever needs longer counts as one that does not answer."""

ENOUGH_SECONDS: Final = 2.5
"""After the first token: those that come in this time say how fast tokens are."""

FEWEST_TOKENS: Final = 4
"""Of an answer that is still one, however slow the target is."""

MOST_TOKENS: Final = 2**20
"""More than any check wants."""

LONGEST_SECONDS: Final = 1e6
"""Of a request that asks for 2^32 tokens: gRPC takes a deadline of centuries for one that has passed."""

EFFORT_SECONDS: Final = 15.0
"""For collecting what a verdict needs, however slow one answer is."""

AGAIN_SECONDS: Final = 10.0
"""For doing a thing again that was seen once."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What was measured, and the bounds that follow from it."""

    ttft: float = 0.0
    itl: float = 0.0
    least_itl: float = 0.0
    """Of all measured requests; the others are the longest, for a machine may stall while it measures."""
    scale: float = 1.0
    patience: float = math.inf
    """For one answer that could be shorter: a target that is slower is asked for fewer tokens."""

    @property
    def reaction(self) -> float:
        """For an effect to show: a cancelled request's slot is free, a drain is visible."""
        return max(2.0, 20 * self.itl, 4 * self.ttft) * self.scale

    @property
    def answer(self) -> float:
        """For a unary call, or for a small request's status."""
        return max(5.0, 20 * self.ttft + 40 * self.itl) * self.scale

    @property
    def check(self) -> float:
        """For a whole check."""
        return max(60.0, 240 * self.ttft + 2000 * self.itl) * self.scale

    def generation(self, output_tokens: int, prompt_tokens: int = 0) -> float:
        """For a request from start to end, alone or in good company; no less patient than a unary call."""
        # A prompt is computed in chunks: per 64 tokens at most as long as a small one.
        prefill = self.ttft * (1 + prompt_tokens / 64)
        return min(2 * self.answer + 10 * (prefill + self.itl * output_tokens) * self.scale, LONGEST_SECONDS)

    def tokens_in(self, seconds: float) -> int:
        """Tokens that one stream needs at least that time for; at least 1."""
        return max(1, round(seconds / max(self.least_itl, 20e-6)))

    @property
    def effort(self) -> float:
        """For all answers of a check that collects as many as it can."""
        return EFFORT_SECONDS * self.scale

    @property
    def tokens_with_patience(self) -> int:
        """The most tokens that one answer is asked for."""
        most = min(self.scale * self.patience / max(self.least_itl, 20e-6), MOST_TOKENS)
        return max(FEWEST_TOKENS, round(most))

    def times_with_effort(self, tokens: int) -> int:
        """How often an answer of so many tokens can be had, one after the other; at least once."""
        each = self.ttft + self.least_itl * max(tokens - 1, 0)
        return max(1, round(AGAIN_SECONDS * self.scale / max(each, 20e-6)))

    def describe(self) -> str:
        """One line for reports."""
        measured = "not measured, for no small request was served"
        if self.ttft:
            measured = f"measured first token {self.ttft * 1e3:.1f} ms, token {self.itl * 1e3:.2f} ms"
        return f"{measured}; bounds: reaction {self.reaction:.1f} s, answer {self.answer:.1f} s"


async def pause(seconds: float = 0.005) -> None:
    """Between two looks at something that is polled."""
    await asyncio.sleep(seconds)


class Looks:
    """At something that is polled: it is late when its time is over and there were enough of them.

    A target that takes long to answer, on a busy machine, takes as long to react.
    """

    def __init__(self, seconds: float) -> None:
        self._end, self._due = time.monotonic() + seconds, LEAST_LOOKS

    def are_over(self) -> bool:
        """Asked once after each look."""
        self._due -= 1
        return self._due <= 0 and time.monotonic() > self._end


@dataclass(frozen=True, slots=True)
class Speed:
    """Of one request, in seconds: to the first token, and from one to the next."""

    ttft: float
    itl: float


async def measured(
    client: Client, requests: Iterable[pb.GenerateRequest], scale: float = 1.0, patience: float = math.inf
) -> Bounds:
    """Bounds from the slowest of these requests; a target that serves none of them gets the floors.

    `scale` multiplies the patience as it does the bounds.
    """
    speeds: list[Speed] = []
    for request in requests:
        if not (speed := await _speed(client, request, scale)):
            break
        speeds.append(speed)
    return Bounds(
        ttft=max((speed.ttft for speed in speeds), default=0.0),
        itl=max((speed.itl for speed in speeds), default=0.0),
        least_itl=min((speed.itl for speed in speeds), default=0.0),
        scale=scale,
        patience=patience,
    )


async def slowdown(client: Client, request: pb.GenerateRequest, bounds: Bounds) -> float:
    """How many times slower this request is than the slowest one that was measured; at least 1.

    1 as well where that cannot be said: nothing was measured, or the request is not served in time.
    """
    speed = None
    with suppress(TimeoutError):
        async with asyncio.timeout(bounds.answer):
            speed = await _speed(client, request, bounds.scale)
    if not (speed and bounds.ttft and bounds.itl):
        return 1.0
    return max(speed.ttft / bounds.ttft, speed.itl / bounds.itl, 1.0)


async def _speed(client: Client, request: pb.GenerateRequest, scale: float) -> Speed | None:
    """None for a request that is not served."""
    patience, enough = FIRST_TOKEN_SECONDS * scale, ENOUGH_SECONDS * scale
    stream = Stream(request, client.generate(request, timeout=patience + 2 * enough))
    until = 0.0
    with suppress(TimeoutError, Violation):
        async with asyncio.timeout(patience):
            await stream.first_token()
        async with asyncio.timeout(enough):
            await stream.more(MEASURED_TOKENS)
            until = stream.exchange.arrived[-1].at
            await stream.end()
    if stream.exchange.code is None:
        stream.cancel()
    is_refused = stream.exchange.code is not None and not stream.exchange.is_ok
    if is_refused or not stream.tokens:
        return None
    first, count = stream.exchange.arrived[0].at, len(stream.tokens)
    return Speed(
        first - stream.exchange.started_at, ((until or time.monotonic()) - first) / max(count - 1, 1)
    )
