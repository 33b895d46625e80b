"""All requests to one engine over one GenerateMultiplexed stream.

The unit of work is the frame: one pass over its columns, then one batched wake-up of the consumers it
concerns. Knows nothing about text, tokenizers or which engine it is.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Mapping

import grpc
from google.protobuf.duration_pb2 import Duration

from backend_client.engine_stream import EngineStream
from backend_client.failure import RequestFailed, failed, from_rpc_error, from_status
from enginewire import v1 as pb

# Waking a consumer costs more than decoding a token. After a round of wake-ups the next one waits this
# many times what that round took, so that under load consumers get longer runs instead of more rounds;
# a slow engine or a few streams never wait noticeably.
WAKE_PAUSE_FACTOR = 2.0
LONGEST_WAKE_PAUSE_SECONDS = 0.005

MultiplexedCall = grpc.aio.StreamStreamCall[pb.GenerateMultiplexedRequest, pb.GenerateMultiplexedResponse]


class MultiplexedConnection:
    """One GenerateMultiplexed call and the requests on it. Dead after its first failure."""

    def __init__(self, open_call: Callable[[], MultiplexedCall]) -> None:
        """Call on the event loop; `open_call` makes the RPC."""
        self._call = open_call()
        self._handles = itertools.count(1)
        self._streams: dict[int, EngineStream] = {}
        self._open_choices: dict[int, int] = {}
        self._outgoing = pb.GenerateMultiplexedRequest()
        self._has_outgoing = asyncio.Event()
        self._to_wake: list[EngineStream] = []
        self._next_wake = 0.0
        self._wake_timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self.is_dead = False
        self._reader = asyncio.create_task(self._read(), name="multiplexed reader")
        self._writer = asyncio.create_task(self._write(), name="multiplexed writer")

    def submit(
        self, request: pb.GenerateRequest, timeout: float | None, metadata: Mapping[str, str]
    ) -> EngineStream:
        """Start a request. `timeout` in seconds."""
        handle = next(self._handles)
        stream = EngineStream(request.request_id, lambda reason: self._abort(handle, reason))
        self._streams[handle] = stream
        self._open_choices[handle] = _open_choices(request.request)
        submit = self._outgoing.submits.add(handle=handle, generate=request, metadata=metadata)
        if timeout is not None:
            submit.timeout.CopyFrom(_duration(timeout))
        self._has_outgoing.set()
        return stream

    async def close(self) -> None:
        """End the call; requests on it end as cancelled."""
        self._fail_all(failed(grpc.StatusCode.CANCELLED, pb.ERROR_REASON_CANCELLED, "the client was closed"))
        self._call.cancel()
        await asyncio.gather(self._reader, self._writer, return_exceptions=True)

    async def _write(self) -> None:
        try:
            while not self.is_dead:
                await self._has_outgoing.wait()
                self._has_outgoing.clear()
                frame, self._outgoing = self._outgoing, pb.GenerateMultiplexedRequest()
                await self._call.write(frame)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            # The reader sees the same end with its status.
            return

    async def _read(self) -> None:
        try:
            async for frame in self._call:
                self._take(frame)
            self._fail_all(_incomplete("the engine ended the stream"))
        except grpc.aio.AioRpcError as error:
            self._fail_all(from_rpc_error(error))
        except asyncio.CancelledError:
            self._fail_all(_incomplete("the stream was cancelled"))
            raise
        finally:
            self._writer.cancel()

    def _take(self, frame: pb.GenerateMultiplexedResponse) -> None:
        if frame.handles:
            self._take_rows(frame)
        for event in frame.events:
            self._take_event(event)
        self._wake_soon()

    def _take_rows(self, frame: pb.GenerateMultiplexedResponse) -> None:
        num_rows = len(frame.handles)
        indexes = frame.indexes or itertools.repeat(0, num_rows)
        token_ids = list(frame.token_ids)
        counts = frame.token_counts or itertools.repeat(1, num_rows)
        streams, to_wake = self._streams, self._to_wake
        begin = 0
        for handle, index, count, position in zip(
            frame.handles, indexes, counts, frame.first_output_positions, strict=True
        ):
            stream = streams.get(handle)
            if stream is not None:
                stream.tokens(index, position, token_ids[begin : begin + count])
                if not stream.is_woken:
                    stream.is_woken = True
                    to_wake.append(stream)
            begin += count

    def _take_event(self, event: pb.HandleEvent) -> None:
        handle = event.handle
        stream = self._streams.get(handle)
        if stream is None:
            return
        kind = event.WhichOneof("event")
        if kind == "accepted":
            stream.accepted = event.accepted
        elif kind == "output":
            stream.output(event.output)
            self._open_choices[handle] -= event.output.finish_reason != pb.FINISH_REASON_UNSPECIFIED
            if self._open_choices[handle] <= 0:
                self._end(handle, None)
        elif kind == "status":
            self._end(handle, from_status(event.status))
        if not stream.is_woken:
            stream.is_woken = True
            self._to_wake.append(stream)

    def _end(self, handle: int, failure: RequestFailed | None) -> None:
        self._open_choices.pop(handle, None)
        self._streams.pop(handle).end(failure)

    def _abort(self, handle: int, reason: str) -> None:
        self._streams.pop(handle, None)
        self._open_choices.pop(handle, None)
        self._outgoing.abort.handles.append(handle)
        self._outgoing.abort.reason = reason
        self._has_outgoing.set()

    def _fail_all(self, failure: RequestFailed) -> None:
        self.is_dead = True
        for handle, stream in list(self._streams.items()):
            self._end(handle, failure)
            stream.wake()

    def _wake_soon(self) -> None:
        """Wake consumers now, or after the pause that the last round has earned."""
        if not self._to_wake or self._wake_timer is not None:
            return
        wait = self._next_wake - time.monotonic()
        if wait <= 0:
            self._wake()
        else:
            self._wake_timer = self._loop.call_later(wait, self._wake)

    def _wake(self) -> None:
        self._wake_timer = None
        streams, self._to_wake = self._to_wake, []
        for stream in streams:
            stream.wake()
        # Runs behind the consumers that were just made ready, so it sees what they cost.
        self._loop.call_soon(self._end_round, time.monotonic())

    def _end_round(self, began: float) -> None:
        now = time.monotonic()
        self._next_wake = now + min(WAKE_PAUSE_FACTOR * (now - began), LONGEST_WAKE_PAUSE_SECONDS)


def _open_choices(request: pb.PreprocessedRequest) -> int:
    finished = sum(choice.finished for choice in request.resume.choices)
    return max(1, request.sampling_options.n) - finished


def _duration(seconds: float) -> Duration:
    duration = Duration()
    duration.FromNanoseconds(max(1, round(seconds * 1e9)))
    return duration


def _incomplete(message: str) -> RequestFailed:
    return failed(grpc.StatusCode.UNAVAILABLE, pb.ERROR_REASON_STREAM_INCOMPLETE, message, retryable=True)
