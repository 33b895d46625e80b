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

from enginewire import v1 as pb
from enginewire.server import status
from enginewire.server.admission.frames import Row, frame_of
from enginewire.server.engines.interface import GenerateContext, Item
from enginewire.server.failures import EngineError

# Together they keep a frame well below the 4 MiB that gRPC clients accept unless told otherwise.
FRAME_ROWS = 100_000
FRAME_EVENT_BYTES = 1 << 20
# Events of engines count as tokens too while they wait: about what an id takes in a message of its own.
BYTES_PER_TOKEN = 32


class Sink(Protocol):
    """Where the outputs of one request go. All calls happen on the event loop, in engine order."""

    def token(self, index: int, position: int, token_id: int) -> None:
        """One token of one choice."""

    def output(self, output: pb.LLMEngineOutput) -> None:
        """An output that is more than a token id."""

    def engine_event(self, event: pb.EngineEvent) -> None:
        """An answer to an annotation: behind what came before it, before what comes after it."""

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
    """Since when something has been waiting for the reader. Tokens are counted when somebody asks."""

    __slots__ = ("limits", "since")

    def __init__(self, limits: BufferLimits) -> None:
        self.limits = limits
        self.since: float | None = None

    def begin(self) -> None:
        """Something waits now."""
        if self.since is None:
            self.since = time.monotonic()

    def taken(self, *, everything: bool) -> None:
        """The reader took some, or everything."""
        self.since = None if everything else time.monotonic()

    def is_too_far(self, now: float, tokens: int, requests: int = 1) -> bool:
        """True when `requests` readers of this buffer, with `tokens` waiting, lag beyond the limits."""
        is_stalled = self.since is not None and now - self.since > self.limits.seconds
        return is_stalled or tokens > self.limits.tokens * requests


class RequestStream:
    """The outputs of one request for one Generate call."""

    def __init__(self, limits: BufferLimits) -> None:
        self._items: list[Item] = []
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
            self._queue(run)
        run.token_ids.append(token_id)

    def output(self, output: pb.LLMEngineOutput) -> None:
        """Queue an output behind the choice's run."""
        self._open_runs.pop(output.index, None)
        self._queue(output)

    def engine_event(self, event: pb.EngineEvent) -> None:
        """Queue an event behind all runs."""
        self._open_runs.clear()
        self._queue(event)

    def _queue(self, item: Item) -> None:
        self._items.append(item)
        self._lag.begin()
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
        return self._lag.is_too_far(now, sum(map(_weight, self._items)))

    async def read(self) -> AsyncIterator[Item]:
        """Everything that was queued, as soon as it is there. Raises the failure at the end, if any."""
        while True:
            await self._ready.wait()
            self._ready.clear()
            items, self._items, self._open_runs = self._items, [], {}
            self._lag.taken(everything=True)
            done = self._done
            for item in items:
                yield item
            if done:
                break
        if self._failure is not None:
            raise self._failure


class Connection:
    """The outputs of all requests of one multiplexed stream, gathered into frames.

    A reader that lags gets several steps in one frame, where the tokens of a choice become one row.
    """

    def __init__(self, limits: BufferLimits, current_step: Callable[[], int]) -> None:
        self._current_step = current_step
        # Tokens of the next frame; its sinks append to it.
        self.rows: list[Row] = []
        self._events: list[pb.HandleEvent] = []
        self._event_bytes = 0
        # Sinks with an event in this frame.
        self._touched: set[HandleSink] = set()
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

    def begin_rows(self) -> list[Row]:
        """Where tokens go when there are none yet, or so many that a frame is full."""
        if self.rows:
            self._full.append(self._take())
        self._lag.begin()
        self._ready.set()
        return self.rows

    def open_run_behind_event(self, sink: HandleSink, index: int, position: int) -> TokenIds:
        """Rows of a frame come before its events, so tokens that follow an event are one themselves."""
        output = pb.LLMEngineOutput(index=index, first_output_position=position)
        event = pb.HandleEvent(handle=sink.handle, output=output)
        self._events.append(event)
        return event.output.token_ids

    def output(self, sink: HandleSink, output: pb.LLMEngineOutput) -> None:
        """An output that is more than a token id."""
        self._touched.add(sink)
        self.event(pb.HandleEvent(handle=sink.handle, output=output))

    def engine_event(self, sink: HandleSink, event: pb.EngineEvent) -> None:
        """An answer to an annotation."""
        self._touched.add(sink)
        self.event(pb.HandleEvent(handle=sink.handle, engine_event=event))

    def event(self, event: pb.HandleEvent) -> None:
        """Anything that is more than a token id."""
        size = event.ByteSize()
        if size >= FRAME_EVENT_BYTES and (self.rows or self._events):
            self._full.append(self._take())  # a frame of its own: it may fill one
        self._events.append(event)
        self._event_bytes += size
        self._lag.begin()
        self._ready.set()
        if self._event_bytes >= FRAME_EVENT_BYTES:
            self._full.append(self._take())

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
        tokens = len(self.rows) + sum(map(_weight_of_event, self._events))
        tokens += sum(len(frame.token_ids) + sum(map(_weight_of_event, frame.events)) for frame in self._full)
        return self._lag.is_too_far(now, tokens, max(1, len(self.live)))

    async def frames(self) -> AsyncIterator[pb.GenerateMultiplexedResponse]:
        """Frames as they fill up: one per step, or several steps in one when the reader lags."""
        while True:
            await self._ready.wait()
            self._ready.clear()
            done = self._closing and not self.live
            while self._failure is None and (self._full or self.rows or self._events):
                frame = self._full.popleft() if self._full else self._take()
                self._lag.taken(everything=not self._full)
                yield frame
            if self._failure is not None:
                raise self._failure
            if done:
                return

    def _take(self) -> pb.GenerateMultiplexedResponse:
        """Everything gathered, as one frame."""
        rows, events = self.rows, self._events
        self.rows, self._events, self._event_bytes = [], [], 0
        for sink in self._touched:
            sink.forget_events()
        self._touched.clear()
        return frame_of(self._current_step(), rows, events)


def _weight_of_event(event: pb.HandleEvent) -> int:
    return _weight(event.engine_event if event.HasField("engine_event") else event.output)


def _weight(item: Item) -> int:
    """In tokens."""
    if isinstance(item, pb.EngineEvent):
        return 1 + item.ByteSize() // BYTES_PER_TOKEN
    return max(1, len(item.token_ids))


class TokenIds(Protocol):
    """The token ids of a message."""

    def append(self, token_id: int, /) -> None:
        """One more."""


class EveryChoice(dict[int, TokenIds | None]):
    """Behind an event of the request all its choices are, and none has tokens there yet."""

    def __contains__(self, index: object) -> bool:
        return True

    def __missing__(self, index: int) -> None:
        return None


class HandleSink:
    """The outputs of one request of a multiplexed stream."""

    __slots__ = ("_behind_event", "_connection", "handle")

    def __init__(self, connection: Connection, handle: int) -> None:
        self.handle = handle
        self._connection = connection
        # By choice with an event in this frame: the tokens behind it, None while there are none.
        self._behind_event: dict[int, TokenIds | None] = {}

    def token(self, index: int, position: int, token_id: int) -> None:
        """One token of the next frame."""
        if index in self._behind_event:
            self._token_behind_event(index, position, token_id)
            return
        rows = self._connection.rows
        if not 0 < len(rows) < FRAME_ROWS:
            rows = self._connection.begin_rows()
        rows.append((self.handle, index, position, token_id))

    def _token_behind_event(self, index: int, position: int, token_id: int) -> None:
        token_ids = self._behind_event[index]
        if token_ids is None:
            token_ids = self._connection.open_run_behind_event(self, index, position)
            self._behind_event[index] = token_ids
        token_ids.append(token_id)

    def output(self, output: pb.LLMEngineOutput) -> None:
        """One event of the next frame."""
        self._behind_event[output.index] = None
        self._connection.output(self, output)

    def engine_event(self, event: pb.EngineEvent) -> None:
        """One event of the next frame, which is not one of a single choice."""
        self._behind_event = EveryChoice()
        self._connection.engine_event(self, event)

    def forget_events(self) -> None:
        """The frame was taken: what comes now belongs to the next one."""
        self._behind_event = {}

    def fail(self, failure: EngineError) -> None:
        """A terminal status event."""
        self._connection.event(pb.HandleEvent(handle=self.handle, status=status.to_status(failure)))
        self._connection.ended(self.handle)

    def finish(self) -> None:
        """The handle may be used again."""
        self._connection.ended(self.handle)

    def is_slow(self, now: float) -> bool:
        """True when the reader of the whole stream has lagged too far behind."""
        return self._connection.is_slow(now)
