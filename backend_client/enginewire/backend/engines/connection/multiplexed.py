"""All requests to one engine over one GenerateMultiplexed stream.

The unit of work is the frame: one pass over its columns, then one batched wake-up of the consumers it
concerns. Knows nothing about text, tokenizers or which engine it is.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Final

import grpc

from enginewire import v1 as pb
from enginewire.backend.engines.connection.rpc import MultiplexedCall, parsed
from enginewire.backend.engines.failure import (
    Failure,
    RequestFailed,
    duration,
    failed,
    from_rpc_error,
    from_status,
    violation,
)
from enginewire.backend.engines.stream import EngineStream

# An event costs more than a token. Where there is no time for an event per token, the next round waits this
# many times what the last one took, so that consumers get longer runs instead of more rounds.
WAKE_PAUSE_FACTOR: Final = 2.0
LONGEST_WAKE_PAUSE_SECONDS: Final = 0.005
# Consumers made ready at once: the first of them shall not wait until the last of hundreds was woken.
WAKE_GROUP: Final = 32
# Submits share a frame up to this size, below any sensible limit of an engine.
FRAME_BYTES: Final = 1 << 20
# Keys and lengths around a submit in its frame.
FRAME_OVERHEAD_BYTES: Final = 16
MAX_HANDLE: Final = (1 << 32) - 1


@dataclass(slots=True)
class OpenChoices:
    """Which choices of a request have had their terminal output."""

    num_choices: int
    ended: set[int]

    def end(self, index: int) -> bool:
        """True when that was the last one. An engine may say so twice, or of a choice nobody asked for."""
        if index < self.num_choices:
            self.ended.add(index)
        return len(self.ended) == self.num_choices


class MultiplexedConnection:
    """One GenerateMultiplexed call and the requests on it. Dead after its first failure."""

    def __init__(
        self, open_call: Callable[[], MultiplexedCall], max_request_bytes: int, silence: float = 0.0
    ) -> None:
        """Call on the event loop; `open_call` makes the RPC. A larger message would end the whole call.

        It is dead as well when an abort is answered by `silence` seconds without any frame; 0 is for ever.
        """
        self._call = open_call()
        self._max_request_bytes = max_request_bytes
        self._silence = silence
        # Runs from an abort until the next frame: an engine answers an abort within a step.
        self._answer_due: asyncio.TimerHandle | None = None
        self._newest_handle = 0
        self._highest_handle = 0
        self._streams: dict[int, EngineStream] = {}
        self._open_choices: dict[int, OpenChoices] = {}
        self._submits: deque[tuple[int, pb.Submit]] = deque()
        self._aborts = pb.AbortHandles()
        self._has_outgoing = asyncio.Event()
        self._has_answered = False
        self._to_wake: list[EngineStream] = []
        self._next_wake = 0.0
        self._round_ended = time.monotonic()
        self._tokens_of_round = 0
        self._wake_timer: asyncio.TimerHandle | None = None
        self._is_waking = False
        self._loop = asyncio.get_running_loop()
        self.is_dead = False
        self._writer = asyncio.create_task(self._write(), name="multiplexed writer")
        self._reader = asyncio.create_task(self._read(), name="multiplexed reader")

    def submit(
        self, request: pb.GenerateRequest, timeout: float | None, metadata: Mapping[str, str]
    ) -> EngineStream:
        """Start a request. `timeout` in seconds. Raises RequestFailed for one that no frame can carry."""
        handle = self._free_handle()
        submit = pb.Submit(handle=handle, generate=request, metadata=metadata)
        if timeout is not None:
            submit.timeout.CopyFrom(duration(max(timeout, 1e-9)))
        size = submit.ByteSize() + FRAME_OVERHEAD_BYTES
        if size > self._max_request_bytes:
            raise _too_large(size, self._max_request_bytes)
        self._newest_handle = handle
        self._highest_handle = max(self._highest_handle, handle)
        stream = EngineStream(request.request_id, lambda reason: self._abort(handle, reason))
        self._streams[handle] = stream
        self._open_choices[handle] = _open_choices(request.request)
        self._submits.append((size, submit))
        self._has_outgoing.set()
        return stream

    async def close(self) -> None:
        """End the call; requests on it end as cancelled."""
        self._give_up(_cancelled("the client was closed").failure)
        await asyncio.gather(self._reader, self._writer, return_exceptions=True)

    async def _write(self) -> None:
        try:
            while True:
                await self._has_outgoing.wait()
                self._has_outgoing.clear()
                while self._submits or self._aborts.handles:
                    await self._call.write(self._next_frame().SerializeToString())
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            # The reader sees the same end with its status.
            return

    def _next_frame(self) -> pb.GenerateMultiplexedRequest:
        """Submits in order; the aborts come behind the last of them."""
        frame = pb.GenerateMultiplexedRequest()
        room = min(FRAME_BYTES, self._max_request_bytes)
        while self._submits and (not frame.submits or self._submits[0][0] <= room):
            size, submit = self._submits.popleft()
            frame.submits.append(submit)
            room -= size
        if self._aborts.handles and not self._submits:
            frame.abort.CopyFrom(self._aborts)
            self._aborts.Clear()
        return frame

    async def _read(self) -> None:
        failure = _incomplete("the engine ended the stream")
        try:
            async for data in self._call:
                self._take(parsed(pb.GenerateMultiplexedResponse, data))
                self._has_answered = True
        except grpc.aio.AioRpcError as error:
            failure = from_rpc_error(error, is_accepted=self._has_answered)
        except RequestFailed as error:
            failure = error
        finally:
            # Whatever it was, no consumer may be left waiting.
            self._fail_all(failure.failure)
            self._writer.cancel()
            self._call.cancel()

    def _take(self, frame: pb.GenerateMultiplexedResponse) -> None:
        """Hand out a frame. Raises RequestFailed when the engine has lost track of what belongs to whom."""
        began = time.monotonic()
        self._expect_no_answer()
        self._tokens_of_round += len(frame.token_ids)
        # Under load, what is taken inline waits for the next round as well, and then comes as longer runs.
        at_once = began >= self._next_wake and not self._is_waking and self._wake_timer is None
        if frame.handles:
            self._take_rows(frame, began if at_once else None)
        for event in frame.events:
            self._take_event(event)
        if at_once and not self._to_wake:
            self._end_round(began, len(frame.handles))
        self._wake_soon()

    def _take_rows(self, frame: pb.GenerateMultiplexedResponse, arrived_at: float | None) -> None:
        streams, to_wake = self._streams, self._to_wake
        for handle, index, position, run in _rows(frame):
            stream = streams.get(handle)
            if stream is not None:
                if stream.tokens(index, position, run, arrived_at) and not stream.is_woken:
                    stream.is_woken = True
                    to_wake.append(stream)
            elif not self._was_used(handle):
                raise violation(f"tokens for handle {handle}, which was never used")

    def _take_event(self, event: pb.HandleEvent) -> None:
        handle = event.handle
        stream = self._streams.get(handle)
        if stream is None:
            if not self._was_used(handle):
                raise violation(f"an event for handle {handle}, which was never used")
            return
        kind = event.WhichOneof("event")
        if kind == "accepted":
            stream.accepted = event.accepted
            return
        if kind == "output":
            self._take_output(handle, stream, event.output)
        elif kind == "status":
            self._end(handle, from_status(event.status).failure)
        elif kind == "engine_event":
            stream.event(event.engine_event)
        if not stream.is_woken:
            stream.is_woken = True
            self._to_wake.append(stream)

    def _take_output(self, handle: int, stream: EngineStream, output: pb.LLMEngineOutput) -> None:
        stream.output(output)
        if output.finish_reason == pb.FINISH_REASON_UNSPECIFIED or stream.ended:
            return
        if self._open_choices[handle].end(output.index):
            self._end(handle, None)

    def _was_used(self, handle: int) -> bool:
        """Rows and events of a request that has ended here may still be on their way."""
        return 0 < handle <= self._highest_handle

    def _free_handle(self) -> int:
        """The next one; after four billion requests they begin again."""
        handle = self._newest_handle % MAX_HANDLE + 1
        while handle in self._streams:
            handle = handle % MAX_HANDLE + 1
        return handle

    def _end(self, handle: int, failure: Failure | None) -> None:
        del self._open_choices[handle]
        self._streams.pop(handle).end(failure)

    def _abort(self, handle: int, reason: str) -> None:
        del self._open_choices[handle], self._streams[handle]
        self._aborts.handles.append(handle)
        self._aborts.reason = reason
        self._has_outgoing.set()
        if self._silence and self._answer_due is None and not self.is_dead:
            self._answer_due = self._loop.call_later(self._silence, self._fell_silent)

    def _fell_silent(self) -> None:
        """Of a message with a falsified length gRPC waits for the rest, and swallows all that comes."""
        self._give_up(_incomplete(f"the engine has not answered an abort for {self._silence:g} s").failure)

    def _expect_no_answer(self) -> None:
        if self._answer_due is not None:
            self._answer_due.cancel()
            self._answer_due = None

    def _give_up(self, failure: Failure) -> None:
        self._fail_all(failure)
        self._reader.cancel()
        self._writer.cancel()
        self._call.cancel()

    def _fail_all(self, failure: Failure) -> None:
        self.is_dead = True
        self._expect_no_answer()
        for handle, stream in list(self._streams.items()):
            self._end(handle, failure)
            self._to_wake.append(stream)
        self._wake()

    def _wake_soon(self) -> None:
        """Wake consumers now, or after the pause that the last round has earned."""
        if not self._to_wake or self._wake_timer is not None or self._is_waking:
            return
        wait = self._next_wake - time.monotonic()
        if wait <= 0:
            self._wake()
        else:
            self._wake_timer = self._loop.call_later(wait, self._wake)

    def _wake(self) -> None:
        if self._wake_timer is not None:
            self._wake_timer.cancel()
            self._wake_timer = None
        streams, self._to_wake = self._to_wake, []
        self._is_waking = True
        self._wake_group(streams, 0, time.monotonic())

    def _wake_group(self, streams: list[EngineStream], begin: int, began: float) -> None:
        end = begin + WAKE_GROUP
        for stream in streams[begin:end]:
            stream.wake()
        # Runs behind the consumers that were just made ready, so the last one sees what all of them cost.
        if end < len(streams):
            self._loop.call_soon(self._wake_group, streams, end, began)
        else:
            self._loop.call_soon(self._end_wake, streams, began)

    def _end_wake(self, streams: list[EngineStream], began: float) -> None:
        self._end_round(began, len(streams))
        self._is_waking = False
        self._wake_soon()

    def _end_round(self, began: float, num_events: int) -> None:
        """Pause, unless each token could have had an event of its own, at what one has cost since `began`."""
        now = time.monotonic()
        took = now - began
        is_overloaded = took * self._tokens_of_round > num_events * (now - self._round_ended)
        pause = min(WAKE_PAUSE_FACTOR * took, LONGEST_WAKE_PAUSE_SECONDS) if is_overloaded else 0.0
        self._next_wake = now + pause
        self._round_ended, self._tokens_of_round = now, 0


def _rows(frame: pb.GenerateMultiplexedResponse) -> Iterable[tuple[int, int, int, list[int]]]:
    """Handle, index, position and tokens, row by row. Raises RequestFailed for columns that do not fit."""
    num_rows = len(frame.handles)
    indexes = frame.indexes or [0] * num_rows
    positions = frame.first_output_positions
    counts = frame.token_counts or [1] * num_rows
    if not num_rows == len(indexes) == len(positions) == len(counts) or len(frame.token_ids) != sum(counts):
        raise violation("a frame whose columns differ in length")
    # Not lists: a row is gone before the next one is made, so that all of them are in the same memory.
    return zip(frame.handles, indexes, positions, _runs(frame), strict=True)


def _runs(frame: pb.GenerateMultiplexedResponse) -> Iterator[list[int]]:
    """The tokens of each row."""
    if not frame.token_counts:
        return ([token_id] for token_id in frame.token_ids)
    ends = accumulate(frame.token_counts, initial=0)
    return (frame.token_ids[begin:end] for begin, end in pairwise(ends))


def _open_choices(request: pb.PreprocessedRequest) -> OpenChoices:
    finished = {choice.index for choice in request.resume.choices if choice.finished}
    return OpenChoices(max(1, request.sampling_options.n), finished)


def _too_large(size: int, limit: int) -> RequestFailed:
    return failed(
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        pb.ERROR_REASON_TOO_LARGE,
        f"the request has {size} bytes, the engine takes {limit}",
    )


def _incomplete(message: str) -> RequestFailed:
    return failed(grpc.StatusCode.UNAVAILABLE, pb.ERROR_REASON_STREAM_INCOMPLETE, message, retryable=True)


def _cancelled(message: str) -> RequestFailed:
    return failed(grpc.StatusCode.CANCELLED, pb.ERROR_REASON_CANCELLED, message)
