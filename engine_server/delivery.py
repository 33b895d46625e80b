"""Outputs on their way from the engine's step to a reader, bounded in tokens.

Holds the two kinds of sink: `RequestStream` for Generate and `Connection` for GenerateMultiplexed.
A reader that lags gets several steps in one message; one that lags too far is reported as slow.
Knows nothing about gRPC calls, admission or engines.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Protocol

from engine_server import status
from engine_server.failures import EngineError
from engine_server.interface import GenerateContext
from enginewire import v1 as pb

# Together they keep a frame well below the 4 MiB that gRPC clients accept unless told otherwise.
FRAME_ROWS = 100_000
FRAME_EVENT_BYTES = 1 << 20


class Sink(Protocol):
    """Where the outputs of one request go. All calls happen on the event loop, in engine order."""

    def token(self, index: int, position: int, token_id: int) -> None:
        """One token of one choice."""

    def output(self, output: pb.LLMEngineOutput) -> None:
        """An output that is more than a token id."""

    def fail(self, failure: EngineError) -> None:
        """The request failed; nothing follows."""

    def finish(self) -> None:
        """Every choice had its terminal output; nothing follows."""

    def is_slow(self, now: float) -> bool:
        """True when the reader has lagged too far behind. `now` is time.monotonic()."""


@dataclass(frozen=True, slots=True)
class BufferLimits:
    """How far a reader may lag: `tokens` per request, or `seconds` without taking anything."""

    tokens: int = 16_384
    seconds: float = 30.0


class Lag:
    """Since when unread tokens have been waiting, and how many there are."""

    __slots__ = ("limits", "since", "tokens")

    def __init__(self, limits: BufferLimits) -> None:
        self.limits = limits
        self.tokens = 0
        self.since = 0.0

    def grew(self, tokens: int = 1) -> None:
        """More tokens wait."""
        if not self.tokens:
            self.since = time.monotonic()
        self.tokens += tokens

    def shrank(self, tokens: int) -> None:
        """The reader took some."""
        self.tokens -= tokens
        self.since = time.monotonic()

    def is_too_far(self, now: float, requests: int = 1) -> bool:
        """True when `requests` readers of this buffer lag further than the limits allow."""
        if not self.tokens:
            return False
        return self.tokens > self.limits.tokens * requests or now - self.since > self.limits.seconds


class RequestStream:
    """The outputs of one request for one Generate call."""

    def __init__(self, limits: BufferLimits) -> None:
        self._outputs: list[pb.LLMEngineOutput] = []
        self._open_runs: dict[int, pb.LLMEngineOutput] = {}
        self._lag = Lag(limits)
        self._ready = asyncio.Event()
        self._done = False
        self._failure: EngineError | None = None

    def token(self, index: int, position: int, token_id: int) -> None:
        """Append to the choice's unread run, or begin one."""
        run = self._open_runs.get(index)
        if run is None:
            run = pb.LLMEngineOutput(index=index, first_output_position=position)
            self._open_runs[index] = run
            self._outputs.append(run)
        run.token_ids.append(token_id)
        self._lag.grew()
        self._ready.set()

    def output(self, output: pb.LLMEngineOutput) -> None:
        """Queue an output behind the choice's run."""
        self._open_runs.pop(output.index, None)
        self._outputs.append(output)
        self._lag.grew(_weight(output))
        self._ready.set()

    def fail(self, failure: EngineError) -> None:
        """End the stream with a failure after what is queued."""
        self._failure = failure
        self.finish()

    def finish(self) -> None:
        """End the stream after what is queued."""
        self._done = True
        self._ready.set()

    def is_slow(self, now: float) -> bool:
        """True when the reader has lagged too far behind."""
        return self._lag.is_too_far(now)

    async def read(self) -> AsyncIterator[pb.LLMEngineOutput]:
        """Everything that was queued, as soon as it is there. Raises the failure at the end, if any."""
        while True:
            await self._ready.wait()
            self._ready.clear()
            outputs, self._outputs, self._open_runs = self._outputs, [], {}
            self._lag.shrank(self._lag.tokens)
            done = self._done
            for output in outputs:
                yield output
            if done:
                break
        if self._failure is not None:
            raise self._failure


class Connection:
    """The outputs of all requests of one multiplexed stream, gathered into frames."""

    def __init__(self, limits: BufferLimits, current_step: Callable[[], int]) -> None:
        self._current_step = current_step
        self._handles: list[int] = []
        self._indexes: list[int] = []
        self._positions: list[int] = []
        self._token_ids: list[int] = []
        self._events: list[pb.HandleEvent] = []
        # Choices with an output among the events, and the last plain run behind it, if any.
        self._behind_event: dict[tuple[int, int], pb.LLMEngineOutput | None] = {}
        self._event_bytes = 0
        self._full: deque[pb.GenerateMultiplexedResponse] = deque()
        self._lag = Lag(limits)
        self._ready = asyncio.Event()
        self._closing = False
        self._failure: EngineError | None = None
        # None until the request was accepted.
        self.live: dict[int, GenerateContext | None] = {}

    def sink(self, handle: int) -> HandleSink:
        """The sink of a new request."""
        self.live[handle] = None
        return HandleSink(self, handle)

    def row(self, handle: int, index: int, position: int, token_id: int) -> None:
        """One token of one choice of one request."""
        if self._behind_event and (handle, index) in self._behind_event:
            self._row_behind_event(handle, index, position, token_id)
            return
        if len(self._handles) >= FRAME_ROWS:
            self._full.append(self._take())
        self._handles.append(handle)
        self._indexes.append(index)
        self._positions.append(position)
        self._token_ids.append(token_id)
        self._lag.grew()
        self._ready.set()

    def output(self, handle: int, output: pb.LLMEngineOutput) -> None:
        """An output that is more than a token id."""
        self._behind_event[handle, output.index] = None
        self.event(pb.HandleEvent(handle=handle, output=output))

    def event(self, event: pb.HandleEvent) -> None:
        """Anything that is more than a token id."""
        self._events.append(event)
        self._event_bytes += event.ByteSize()
        self._lag.grew(_weight(event.output))
        if self._event_bytes >= FRAME_EVENT_BYTES:
            self._full.append(self._take())
        self._ready.set()

    def _row_behind_event(self, handle: int, index: int, position: int, token_id: int) -> None:
        """Rows of a frame come before its events, so a token that follows an event becomes one itself."""
        run = self._behind_event[handle, index]
        if run is None:
            run = pb.LLMEngineOutput(token_ids=[token_id], index=index, first_output_position=position)
            event = pb.HandleEvent(handle=handle, output=run)
            self._behind_event[handle, index] = event.output
            self.event(event)
        else:
            run.token_ids.append(token_id)
            self._lag.grew()

    def ended(self, handle: int) -> None:
        """Nothing of this handle follows."""
        self.live.pop(handle, None)
        self._ready.set()

    def close(self, failure: EngineError | None = None) -> None:
        """No more requests come: end after the live ones, or at once with `failure`."""
        self._closing = True
        self._failure = failure
        self._ready.set()

    def is_slow(self, now: float) -> bool:
        """True when the reader has lagged too far behind."""
        return self._lag.is_too_far(now, max(1, len(self.live)))

    async def frames(self) -> AsyncIterator[pb.GenerateMultiplexedResponse]:
        """Frames as they fill up: one per step, or several steps in one when the reader lags."""
        while True:
            await self._ready.wait()
            self._ready.clear()
            done = self._closing and not self.live
            while self._failure is None and (self._full or self._handles or self._events):
                frame = self._full.popleft() if self._full else self._take()
                self._lag.shrank(len(frame.token_ids) + sum(_weight(event.output) for event in frame.events))
                yield frame
            if self._failure is not None:
                raise self._failure
            if done:
                return

    def _take(self) -> pb.GenerateMultiplexedResponse:
        handles, indexes, positions, token_ids = (
            self._handles,
            self._indexes,
            self._positions,
            self._token_ids,
        )
        events = self._events
        self._handles, self._indexes, self._positions, self._token_ids = [], [], [], []
        self._events, self._behind_event, self._event_bytes = [], {}, 0
        counts: list[int] = []
        if len(handles) > len(self.live) + len(events):
            # More rows than requests: the reader lags. Longer runs are cheaper for it than more rows.
            handles, indexes, positions, counts, token_ids = merged(handles, indexes, positions, token_ids)
        return pb.GenerateMultiplexedResponse(
            step=self._current_step(),
            handles=handles,
            indexes=indexes if any(indexes) else (),
            token_counts=counts,
            first_output_positions=positions,
            token_ids=token_ids,
            events=events,
        )


def _weight(output: pb.LLMEngineOutput) -> int:
    return max(1, len(output.token_ids))


def merged(
    handles: list[int], indexes: list[int], positions: list[int], token_ids: list[int]
) -> tuple[list[int], list[int], list[int], list[int], list[int]]:
    """The same rows with consecutive tokens of a choice in one run.

    Returns handles, indexes, positions, token counts and token ids.
    """
    runs: dict[tuple[int, int], tuple[int, list[int]]] = {}
    for handle, index, position, token_id in zip(handles, indexes, positions, token_ids, strict=True):
        run = runs.get((handle, index))
        if run is None:
            runs[handle, index] = (position, [token_id])
        else:
            run[1].append(token_id)
    return (
        [handle for handle, _ in runs],
        [index for _, index in runs],
        [position for position, _ in runs.values()],
        [len(tokens) for _, tokens in runs.values()],
        [token_id for _, tokens in runs.values() for token_id in tokens],
    )


class HandleSink:
    """The outputs of one request of a multiplexed stream."""

    __slots__ = ("_connection", "_handle")

    def __init__(self, connection: Connection, handle: int) -> None:
        self._connection = connection
        self._handle = handle

    def token(self, index: int, position: int, token_id: int) -> None:
        """One row of the next frame."""
        self._connection.row(self._handle, index, position, token_id)

    def output(self, output: pb.LLMEngineOutput) -> None:
        """One event of the next frame."""
        self._connection.output(self._handle, output)

    def fail(self, failure: EngineError) -> None:
        """A terminal status event."""
        self._connection.event(pb.HandleEvent(handle=self._handle, status=status.to_status(failure)))
        self._connection.ended(self._handle)

    def finish(self) -> None:
        """The handle may be used again."""
        self._connection.ended(self._handle)

    def is_slow(self, now: float) -> bool:
        """True when the reader of the whole stream has lagged too far behind."""
        return self._connection.is_slow(now)
