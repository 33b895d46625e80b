"""Outputs on their way from the engine's step to a reader, bounded in tokens.

Holds the two kinds of sink: `RequestStream` for Generate and `Connection` for GenerateMultiplexed.
A reader that lags gets several steps in one message; one that lags too far is reported as slow.
Knows nothing about gRPC calls, admission or engines.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
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
            self._queue(run)
        run.token_ids.append(token_id)

    def output(self, output: pb.LLMEngineOutput) -> None:
        """Queue an output behind the choice's run."""
        self._open_runs.pop(output.index, None)
        self._queue(output)

    def _queue(self, output: pb.LLMEngineOutput) -> None:
        self._outputs.append(output)
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
        return self._lag.is_too_far(now, sum(map(_weight, self._outputs)))

    async def read(self) -> AsyncIterator[pb.LLMEngineOutput]:
        """Everything that was queued, as soon as it is there. Raises the failure at the end, if any."""
        while True:
            await self._ready.wait()
            self._ready.clear()
            outputs, self._outputs, self._open_runs = self._outputs, [], {}
            self._lag.taken(everything=True)
            done = self._done
            for output in outputs:
                yield output
            if done:
                break
        if self._failure is not None:
            raise self._failure


class Connection:
    """The outputs of all requests of one multiplexed stream, gathered into frames.

    Tokens gather in runs, one per choice and frame, so a reader that lags gets longer runs.
    """

    def __init__(self, limits: BufferLimits, current_step: Callable[[], int]) -> None:
        self._current_step = current_step
        self._runs: list[Run] = []
        self._events: list[pb.HandleEvent] = []
        self._event_bytes = 0
        # Sinks with something in this frame.
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

    def open_run(self, sink: HandleSink, index: int, position: int) -> TokenIds:
        """Where the coming tokens of a choice go until the frame is taken."""
        run = Run(sink.handle, index, position, [])
        self._runs.append(run)
        self._touched.add(sink)
        self._lag.begin()
        self._ready.set()
        return run.token_ids

    def open_run_behind_event(self, sink: HandleSink, index: int, position: int) -> TokenIds:
        """As `open_run`. Rows of a frame come before its events, so what follows an event is one itself."""
        output = pb.LLMEngineOutput(index=index, first_output_position=position)
        event = pb.HandleEvent(handle=sink.handle, output=output)
        self._events.append(event)
        self._touched.add(sink)
        self._lag.begin()
        self._ready.set()
        return event.output.token_ids

    def output(self, sink: HandleSink, output: pb.LLMEngineOutput) -> None:
        """An output that is more than a token id."""
        self._touched.add(sink)
        self.event(pb.HandleEvent(handle=sink.handle, output=output))

    def event(self, event: pb.HandleEvent) -> None:
        """Anything that is more than a token id."""
        size = event.ByteSize()
        if size >= FRAME_EVENT_BYTES and (self._runs or self._events):
            self._full.extend(self._take())  # a frame of its own: it may fill one
        self._events.append(event)
        self._event_bytes += size
        self._lag.begin()
        self._ready.set()
        if self._event_bytes >= FRAME_EVENT_BYTES:
            self._full.extend(self._take())

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
        tokens = sum(len(run.token_ids) for run in self._runs) + sum(map(_weight_of_event, self._events))
        tokens += sum(len(frame.token_ids) + sum(map(_weight_of_event, frame.events)) for frame in self._full)
        return self._lag.is_too_far(now, tokens, max(1, len(self.live)))

    async def frames(self) -> AsyncIterator[pb.GenerateMultiplexedResponse]:
        """Frames as they fill up: one per step, or several steps in one when the reader lags."""
        while True:
            await self._ready.wait()
            self._ready.clear()
            done = self._closing and not self.live
            while self._failure is None and (self._full or self._runs or self._events):
                if not self._full:
                    self._full.extend(self._take())
                frame = self._full.popleft()
                self._lag.taken(everything=not self._full)
                yield frame
            if self._failure is not None:
                raise self._failure
            if done:
                return

    def _take(self) -> list[pb.GenerateMultiplexedResponse]:
        """Everything gathered, as one frame or as several of bounded size."""
        runs, events = self._runs, self._events
        self._runs, self._events, self._event_bytes = [], [], 0
        for sink in self._touched:
            sink.forget_runs()
        self._touched.clear()
        step = self._current_step()
        if sum(len(run.token_ids) for run in runs) <= FRAME_ROWS:
            return [frame_of(step, runs, events)]
        groups = list(split_runs(runs, FRAME_ROWS))
        return [frame_of(step, group, []) for group in groups[:-1]] + [frame_of(step, groups[-1], events)]


def frame_of(
    step: int, runs: Sequence[Run], events: Sequence[pb.HandleEvent]
) -> pb.GenerateMultiplexedResponse:
    """One frame: a row per run, then the events."""
    indexes = [run.index for run in runs]
    token_ids = list(chain.from_iterable([run.token_ids for run in runs]))
    return pb.GenerateMultiplexedResponse(
        step=step,
        handles=[run.handle for run in runs],
        indexes=indexes if any(indexes) else (),
        token_counts=[len(run.token_ids) for run in runs] if len(token_ids) > len(runs) else (),
        first_output_positions=[run.position for run in runs],
        token_ids=token_ids,
        events=events,
    )


def split_runs(runs: Iterable[Run], max_tokens: int) -> Iterator[list[Run]]:
    """The same tokens in the same order, in groups of at most `max_tokens`."""
    group: list[Run] = []
    room = max_tokens
    for run in runs:
        begin = 0
        while begin < len(run.token_ids):
            piece = Run(run.handle, run.index, run.position + begin, run.token_ids[begin : begin + room])
            group.append(piece)
            begin += len(piece.token_ids)
            room -= len(piece.token_ids)
            if room == 0:
                yield group
                group, room = [], max_tokens
    yield group


def _weight_of_event(event: pb.HandleEvent) -> int:
    return _weight(event.output)


def _weight(output: pb.LLMEngineOutput) -> int:
    return max(1, len(output.token_ids))


class TokenIds(Protocol):
    """A list of token ids, plain or inside a message."""

    def append(self, token_id: int, /) -> None:
        """One more."""


class Run:
    """Consecutive tokens of one choice in the frame that is being gathered."""

    __slots__ = ("handle", "index", "position", "token_ids")

    def __init__(self, handle: int, index: int, position: int, token_ids: list[int]) -> None:
        self.handle = handle
        self.index = index
        self.position = position
        self.token_ids = token_ids


class HandleSink:
    """The outputs of one request of a multiplexed stream."""

    __slots__ = ("_behind_event", "_connection", "_runs", "handle")

    def __init__(self, connection: Connection, handle: int) -> None:
        self.handle = handle
        self._connection = connection
        # By choice: its open run in this frame, and whether it already has an event there.
        self._runs: dict[int, TokenIds] = {}
        self._behind_event: set[int] = set()

    def token(self, index: int, position: int, token_id: int) -> None:
        """One token of the next frame."""
        token_ids = self._runs.get(index)
        if token_ids is None:
            is_behind = index in self._behind_event
            open_run = self._connection.open_run_behind_event if is_behind else self._connection.open_run
            token_ids = self._runs[index] = open_run(self, index, position)
        token_ids.append(token_id)

    def output(self, output: pb.LLMEngineOutput) -> None:
        """One event of the next frame."""
        self._runs.pop(output.index, None)
        self._behind_event.add(output.index)
        self._connection.output(self, output)

    def forget_runs(self) -> None:
        """The frame was taken: what comes now belongs to the next one."""
        self._runs.clear()
        self._behind_event.clear()

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
