"""Plain tokens decoded in the very pass over the engine's frame, for callers that want no task woken.

Knows nothing about how a request is sent, ends or goes on: whatever is more than text and tokens is left to
the request's own coroutine.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from enginewire.backend.activity.live_request import LiveRequest
from enginewire.backend.decoding.annotated import BackendOutput
from enginewire.backend.decoding.request_decoder import RequestDecoder
from enginewire.backend.engines.stream import Chunk
from enginewire.backend.replay.attempts import Attempts

Inline = Callable[[BackendOutput], bool | None]
"""Gets an output at once. Quick, because all other requests of the frame wait for it.

True when it can take no more: then what follows waits until the caller asks for the next item.
"""


@dataclass(slots=True)
class RequestTracker:
    """What one request cost in this process. Times in nanoseconds of time.perf_counter_ns.

    An id that is only looked up in the pass over a frame costs less than looking at the clock: it counts as
    no time.
    """

    detokenize_ns: int = 0
    num_tokens: int = 0
    engine_lifetime_id: str = ""


class InlineDecoder:
    """Stands in for a consumer while it waits."""

    __slots__ = ("_clock", "_decoder", "_first", "_inline", "_live", "_tracker", "error")

    def __init__(
        self, decoder: RequestDecoder, live: LiveRequest, tracker: RequestTracker, inline: Inline
    ) -> None:
        # What the caller's function, or an engine that broke the contract, has raised.
        self.error: Exception | None = None
        self._decoder = decoder
        # Most requests have no other choice.
        self._first, self._clock = decoder.choices[0].decoder, live.clocks[0]
        self._live = live
        self._tracker = tracker
        self._inline = inline

    async def read(self, attempts: Attempts) -> list[Chunk]:
        """`attempts.read`; what arrives meanwhile is taken, if it is plain tokens."""
        before = self._decoder.num_passed_on
        try:
            return await attempts.read(self.take)
        finally:
            self._tracker.num_tokens += self._decoder.num_passed_on - before

    def take(self, index: int, position: int, token_ids: list[int], arrived_at: float) -> bool:
        """Decode and hand on; False when that was the last of it, went wrong, or is as much as is wanted."""
        try:
            if len(token_ids) == 1 and not index:
                text = self._first.take_known(position, token_ids[0])
                if text is not None:
                    if not self._clock.take(1, arrived_at):
                        self._live.take_first(arrived_at)
                    return not self._inline(BackendOutput(token_ids, None, text, index, position))
            is_full: bool | None = False
            output = self._decode(index, position, token_ids)
            if output is not None:
                self._live.add((output,))
                is_full = self._inline(output)
        except Exception as error:  # noqa: BLE001  # no request may break the frame of all others
            self.error = error
            return False
        return not (is_full or self._decoder.is_finished)

    def _decode(self, index: int, position: int, token_ids: list[int]) -> BackendOutput | None:
        begin = time.perf_counter_ns()
        output = self._decoder.process_tokens(index, position, token_ids)
        # What is passed on is counted by `read`.
        self._tracker.num_tokens += len(token_ids) - (0 if output is None else len(output.token_ids))
        self._tracker.detokenize_ns += time.perf_counter_ns() - begin
        return output
