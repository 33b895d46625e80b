"""One request's outputs between the connection's reader and its consumer.

The reader appends without waiting; the consumer takes everything that is there. Tokens that follow each
other become one chunk, so a consumer that lags does less work per token. Knows nothing about gRPC or text.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import grpc

from enginewire import v1 as pb
from enginewire.backend.engines.failure import Failure, RequestFailed, failed, violation

# A consumer this many tokens behind is not coming back: nothing but a bug or a stall gets there.
MAX_WAITING_TOKENS: Final = 1 << 18
# Log-probabilities and other data count as tokens too: about what an int in a list takes.
BYTES_PER_TOKEN: Final = 32
# What the contract allows an engine to tell a request beside its outputs.
MAX_EVENTS: Final = 1024
MAX_EVENT_BYTES: Final = 65_536
# Log-probabilities of a long prompt are heavier than anything else and say nothing about the consumer.
HEAVY_OUTPUTS: Final = 8
# How often to look whether an engine has said something, within the shortest time that it may be silent.
LOOKS: Final = 8


@dataclass(slots=True)
class Chunk:
    """Consecutive tokens of one choice; with `output`, that message's tokens and everything beside them.

    With `event` it is that and nothing else.
    """

    index: int
    first_output_position: int
    token_ids: list[int]
    output: pb.LLMEngineOutput | None = None
    event: pb.EngineEvent | None = None

    @property
    def is_cancelled(self) -> bool:
        """The choice ended because somebody, perhaps a drain, had it ended."""
        return self.output is not None and self.output.finish_reason == pb.FINISH_REASON_CANCELLED


@dataclass(frozen=True, slots=True)
class Patience:
    """How long an engine may say nothing about a request, in seconds; 0 is for ever.

    `first_token` has the queue and the prompt in it, `token` is for an answer that has begun.
    """

    first_token: float = 3600.0
    token: float = 600.0


PATIENCE: Final = Patience()


Take = Callable[[int, int, list[int], float], bool]
"""Takes plain tokens: index, position, ids, and when they came, a time of time.monotonic.

False when the consumer has to run then. Must not raise.
"""


class EngineStream:
    """Outputs of one request, in engine order. One consumer."""

    __slots__ = (
        "_chunks",
        "_has_begun",
        "_heard_at",
        "_is_heard",
        "_last",
        "_listener",
        "_max_waiting_tokens",
        "_num_events",
        "_on_abort",
        "_take",
        "_timer",
        "_waiter",
        "_waiting_tokens",
        "accepted",
        "answered",
        "ended",
        "failure",
        "has_cancelled",
        "is_woken",
        "request_id",
    )

    def __init__(
        self,
        request_id: str,
        on_abort: Callable[[str], None],
        max_waiting_tokens: int = MAX_WAITING_TOKENS,
    ) -> None:
        """`on_abort(reason)` tells the engine that nobody wants the rest."""
        self.request_id = request_id
        self.accepted: pb.Accepted | None = None
        self.ended = False
        self.failure: Failure | None = None
        # An output has said that a choice was cancelled.
        self.has_cancelled = False
        # Annotations that have had an event, by their keys.
        self.answered: frozenset[str] = frozenset()
        self._num_events = 0
        # Set by the reader when a wake-up is due, so that each frame wakes a consumer at most once.
        self.is_woken = False
        self._chunks: list[Chunk] = []
        self._last: Chunk | None = None
        # Set while the consumer waits, if it wants to be given plain tokens without being woken.
        self._take: Take | None = None
        self._waiting_tokens = 0
        # A bare future instead of an Event: waking is most of what a token costs.
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._listener: asyncio.TimerHandle | None = None
        # Something came since the last look, and ever.
        self._is_heard = self._has_begun = False
        self._heard_at = 0.0
        self._on_abort = on_abort
        self._max_waiting_tokens = max_waiting_tokens

    def tokens(
        self, index: int, position: int, token_ids: list[int], arrived_at: float | None = None
    ) -> bool:
        """Tokens of one choice; True when `wake` is due. The list becomes the stream's own.

        With `arrived_at`, what can be taken without waking the consumer does not wait.
        """
        self._is_heard = True
        # As long as the consumer waits, chunks weigh something.
        if arrived_at is not None and self._take is not None and not self._waiting_tokens:
            if self._take(index, position, token_ids, arrived_at):
                return False
            # It was taken all the same: there is only something to see.
            token_ids, position = [], position + len(token_ids)
            self._take = None
        last = self._last
        if (
            last is not None
            and last.index == index
            and last.first_output_position + len(last.token_ids) == position
        ):
            last.token_ids += token_ids
        else:
            self._last = Chunk(index, position, token_ids)
            self._chunks.append(self._last)
            self._waiting_tokens += 1
        self._waiting_tokens += len(token_ids)
        if self._waiting_tokens > self._max_waiting_tokens:
            self._give_up()
        return True

    def output(self, output: pb.LLMEngineOutput) -> None:
        """An output that is more than token ids."""
        self._last = None
        self._is_heard = True
        self.has_cancelled |= output.finish_reason == pb.FINISH_REASON_CANCELLED
        token_ids = list(output.token_ids)
        self._chunks.append(Chunk(output.index, output.first_output_position, token_ids, output))
        weight = 1 + len(token_ids) + output.ByteSize() // BYTES_PER_TOKEN
        self._waiting_tokens += min(weight, self._max_waiting_tokens // HEAVY_OUTPUTS)
        if self._waiting_tokens > self._max_waiting_tokens:
            self._give_up()

    def event(self, event: pb.EngineEvent) -> None:
        """What the engine tells beside its outputs, in its place among them."""
        size = event.ByteSize()
        self._num_events += 1
        if self._num_events > MAX_EVENTS or size > MAX_EVENT_BYTES:
            which = f"event {self._num_events} of {size} bytes, allowed are {MAX_EVENTS} of {MAX_EVENT_BYTES}"
            self.abort("protocol violation", violation(which).failure)
            return
        self.answered |= {event.event}
        self._last = None
        self._chunks.append(Chunk(0, 0, [], event=event))
        self._waiting_tokens += 1 + size // BYTES_PER_TOKEN
        if self._waiting_tokens > self._max_waiting_tokens:
            self._give_up()

    def end(self, failure: Failure | None = None) -> None:
        """Nothing follows."""
        if not self.ended:
            self.ended = True
            self.failure = failure
            for timer in (self._timer, self._listener):
                if timer is not None:
                    timer.cancel()
            # They hold this stream: without that its tokens would wait for the garbage collector.
            self._timer = self._listener = None

    def listen(self, patience: Patience) -> None:
        """Give up on an engine that has forgotten the request: its keepalive is answered all the same."""
        limits = [limit for limit in (patience.first_token, patience.token) if limit]
        if limits:
            self._heard_at = time.monotonic()
            self._listen(patience, min(limits) / LOOKS)

    def _listen(self, patience: Patience, pause: float) -> None:
        # Looking now and then costs tokens no more than to be noted.
        now = time.monotonic()
        if self._is_heard:
            self._heard_at, self._has_begun, self._is_heard = now, True, False
        limit = patience.token if self._has_begun else patience.first_token
        if limit and now - self._heard_at >= limit:
            self._forgotten(limit)
            return
        loop = asyncio.get_running_loop()
        self._listener = loop.call_later(pause, self._listen, patience, pause)

    def _forgotten(self, seconds: float) -> None:
        code, reason = grpc.StatusCode.UNAVAILABLE.value[0], pb.ERROR_REASON_STREAM_INCOMPLETE
        message = f"the engine has sent nothing about the request for {seconds:g} s"
        self.abort(message, Failure(code, reason, message, retryable=True))
        self.wake()

    def expire_after(self, seconds: float) -> None:
        """Give up on an engine that has not ended the stream by then."""
        # One timer for the whole answer: one for each read would cost as much as the read.
        self._timer = asyncio.get_running_loop().call_later(seconds, self._expire)

    def _expire(self) -> None:
        code, reason = grpc.StatusCode.DEADLINE_EXCEEDED.value[0], pb.ERROR_REASON_DEADLINE_EXCEEDED
        failure = Failure(code, reason, "the deadline passed and the engine went on")
        # What still waits has come too late for its reader.
        self._chunks, self._last = [], None
        self.abort("the deadline passed", failure)
        self.wake()

    def wake(self) -> None:
        """Let the consumer run, unless it has left all that waits to its `take`."""
        self.is_woken = False
        if self._take is not None and self._hand_out(self._take) and not self.ended:
            return
        if (waiter := self._waiter) is not None and not waiter.done():
            waiter.set_result(None)

    def _hand_out(self, take: Take) -> bool:
        """Give plain tokens to whoever takes them; False when something is left for the consumer."""
        chunks, self._chunks, self._last = self._chunks, [], None
        self._waiting_tokens = 0
        now = time.monotonic()
        for place, chunk in enumerate(chunks):
            if chunk.output is None and chunk.event is None:
                if take(chunk.index, chunk.first_output_position, chunk.token_ids, now):
                    continue
                chunk.first_output_position += len(chunk.token_ids)
                chunk.token_ids = []
            self._chunks, self._take = chunks[place:], None
            return False
        return True

    async def read(self, take: Take | None = None) -> list[Chunk]:
        """Everything that has arrived, at least one chunk; [] at the end.

        Plain tokens that arrive meanwhile go to `take` until something else arrives or it wants to be seen
        to. Raises RequestFailed once everything before the failure was taken.
        """
        while not self._chunks:
            if self.failure is not None:
                raise RequestFailed(self.failure)
            if self.ended:
                return []
            self._waiter = asyncio.get_running_loop().create_future()
            self._take = take
            try:
                await self._waiter
            finally:
                self._take = None
        chunks, self._chunks, self._last = self._chunks, [], None
        self._waiting_tokens = 0
        return chunks

    def abort(self, reason: str, failure: Failure | None = None) -> None:
        """Nobody wants the rest: tell the engine, once. The consumer is told `failure`."""
        if not self.ended:
            self.end(failure)
            self._on_abort(reason)

    def _give_up(self) -> None:
        if self.ended:
            return
        self._on_abort("slow consumer")
        self.end(
            Failure(
                grpc.StatusCode.RESOURCE_EXHAUSTED.value[0],
                pb.ERROR_REASON_SLOW_CONSUMER,
                f"{self.request_id}: the consumer is {self._waiting_tokens} tokens behind",
            )
        )


def life_of(stream: EngineStream) -> str:
    """The engine_lifetime_id under which the request was accepted, or ""."""
    return stream.accepted.engine_lifetime_id if stream.accepted else ""


def some(chunks: list[Chunk]) -> list[Chunk]:
    """What was read before the answer was complete. Raises RequestFailed for nothing: it ended too early."""
    if not chunks:
        raise failed(
            grpc.StatusCode.UNAVAILABLE,
            pb.ERROR_REASON_STREAM_INCOMPLETE,
            "the engine's stream ended without a terminal output",
            retryable=True,
        )
    return chunks


def without_cancelled(chunks: list[Chunk]) -> list[Chunk]:
    """The chunks without the ends that a drain put to choices which nobody asked to cancel.

    Raises RequestFailed when nothing else is left: the request can go on elsewhere.
    """
    kept = [chunk for chunk in chunks if not chunk.is_cancelled]
    if not kept:
        raise failed(
            grpc.StatusCode.UNAVAILABLE,
            pb.ERROR_REASON_DRAINING,
            "the engine was shut down before the request had ended",
            retryable=True,
        )
    return kept
