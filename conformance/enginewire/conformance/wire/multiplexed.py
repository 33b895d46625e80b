"""A multiplexed stream as a client sees it: frames taken apart into what each handle got.

Judges only what makes a frame unreadable: columns of different length.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, cast

from enginewire import v1 as pb
from enginewire.conformance.wire.client import Client
from enginewire.conformance.wire.exchange import Exchange, Metadata
from enginewire.conformance.wire.stream import Choice, choices_of, num_choices
from enginewire.conformance.wire.violation import Violation

NAME: Final = "EngineService.GenerateMultiplexed"


@dataclass(slots=True)
class Handle:
    """What came for one use of a handle, in order. `late` is what came after its end."""

    choices: int
    request_id: str
    outputs: list[pb.LLMEngineOutput] = field(default_factory=list)
    events: list[pb.EngineEvent] = field(default_factory=list)
    first: set[str] = field(default_factory=set)
    """Names of the events that came before any token."""
    accepted: list[pb.Accepted] = field(default_factory=list)
    status: pb.Status | None = None
    ended: int = 0
    late: list[object] = field(default_factory=list)
    is_early: bool = False
    """True when an output or an event came before the frame with Accepted."""

    @property
    def by_choice(self) -> dict[int, Choice]:
        """The outputs of each choice."""
        return choices_of(self.outputs)

    @property
    def tokens(self) -> list[int]:
        """Of choice 0."""
        return self.by_choice.get(0, Choice(0)).tokens

    @property
    def count(self) -> int:
        """Tokens of all choices."""
        return sum(len(output.token_ids) for output in self.outputs)

    @property
    def terminals(self) -> list[pb.LLMEngineOutput]:
        """All outputs with a finish_reason."""
        return [output for output in self.outputs if output.finish_reason]

    @property
    def is_answered(self) -> bool:
        """Accepted, or refused."""
        return bool(self.accepted or self.status)

    @property
    def has_ended(self) -> bool:
        """A status, or a terminal of every choice."""
        return self.status is not None or self.ended >= self.choices

    @property
    def usage(self) -> pb.CompletionUsage:
        """On the last terminal."""
        return self.terminals[-1].completion_usage if self.terminals else pb.CompletionUsage()


class Multiplexed:
    """A GenerateMultiplexed under way."""

    def __init__(
        self,
        client: Client,
        timeout: float,
        joined: Callable[[pb.GenerateRequest], pb.GenerateRequest] = lambda request: request,
    ) -> None:
        """`joined` is what becomes of a request before it is sent."""
        self.uses: dict[int, list[Handle]] = {}
        self.frames: list[pb.GenerateMultiplexedResponse] = []
        self._sent: asyncio.Queue[pb.GenerateMultiplexedRequest | None] = asyncio.Queue()
        self._joined = joined
        self.call = client.call(NAME, self._requests(), timeout=timeout)

    @property
    def exchange(self) -> Exchange:
        """The recorded RPC."""
        return self.call.exchange

    @property
    def live(self) -> list[str]:
        """Ids of the requests that have no end yet."""
        return [use.request_id for uses in self.uses.values() for use in uses if not use.has_ended]

    def handle(self, number: int) -> Handle:
        """The latest use of a handle."""
        return self.uses[number][-1]

    def submit(self, number: int, request: pb.GenerateRequest, timeout: float | None = None) -> None:
        """Start a request."""
        self.send(self.submitted(number, request, timeout))

    def submitted(
        self,
        number: int,
        request: pb.GenerateRequest,
        timeout: float | None = None,
        metadata: Metadata = (),
    ) -> pb.Submit:
        """The Submit of a request, for a frame with several of them."""
        request = self._joined(request)
        finished = sum(choice.finished for choice in request.request.resume.choices)
        # With nothing left to do there is no end but a refusal.
        choices = max(num_choices(request.request) - finished, 1)
        self.uses.setdefault(number, []).append(Handle(choices, request.request_id))
        submit = pb.Submit(handle=number, generate=request)
        submit.metadata.update({name: str(value) for name, value in metadata})
        if timeout is not None:
            submit.timeout.FromNanoseconds(round(timeout * 1e9))
        return submit

    def send(self, *submits: pb.Submit, abort: tuple[int, ...] = (), reason: str = "") -> None:
        """Send one frame."""
        frame = pb.GenerateMultiplexedRequest(submits=submits)
        frame.abort.handles.extend(abort)
        frame.abort.reason = reason
        self._sent.put_nowait(frame)

    def half_close(self) -> None:
        """No more requests come."""
        self._sent.put_nowait(None)

    async def until(self, is_done: Callable[[], bool]) -> None:
        """Read until something holds; the end of the stream before it is a Violation."""
        while not is_done():
            if await self.read() is None:
                raise Violation("the multiplexed stream ended too early", seen=self.exchange.status)

    async def until_ended(
        self, *numbers: int, within: float | None = None, left: Mapping[int, int] | None = None
    ) -> None:
        """Read until these handles have ended; later than `within` seconds is a Violation.

        Those that are `left` are aborted when they have so many tokens.
        """
        due = dict(left or {})

        def have_ended() -> bool:
            if leave := [number for number, count in due.items() if self.handle(number).count >= count]:
                # A handle that is not known comes first, and is ignored.
                self.send(abort=(max(self.uses) + 1, *leave))
            for number in leave:
                del due[number]
            return all(self.handle(number).has_ended for number in numbers)

        try:
            async with asyncio.timeout(within):
                await self.until(have_ended)
        except TimeoutError:
            live = [number for number in numbers if not self.handle(number).has_ended]
            raise Violation(f"handles have no end within {within:.1f} s", seen=live) from None

    async def finish(self) -> Exchange:
        """Read to the status."""
        while await self.read() is not None:
            pass
        return self.exchange

    async def close(self) -> None:
        """End the stream, whatever is live on it."""
        self.half_close()
        self.call.cancel()
        await self.call.finish()

    async def read(self) -> pb.GenerateMultiplexedResponse | None:
        """The next frame, taken apart; None at the end."""
        message = await anext(self.call, None)
        if message is None:
            return None
        frame = cast(pb.GenerateMultiplexedResponse, message)
        self.frames.append(frame)
        accepted = {event.handle for event in frame.events if event.HasField("accepted")}
        for number, output in rows_of(frame):
            self._arrived(number, output, number in accepted)
        for event in frame.events:
            self._event(event, event.handle in accepted)
        return frame

    def _event(self, event: pb.HandleEvent, is_accepted_here: bool) -> None:
        if event.HasField("output"):
            self._arrived(event.handle, event.output, False)
            return
        handle = self._known(event.handle)
        if handle.has_ended:
            handle.late.append(event)
        elif event.HasField("accepted"):
            handle.accepted.append(event.accepted)
        elif event.HasField("engine_event"):
            handle.is_early = handle.is_early or not (handle.accepted or is_accepted_here)
            handle.events.append(event.engine_event)
            if not handle.count:
                handle.first.add(event.engine_event.event)
        elif event.HasField("status"):
            handle.status = event.status

    def _arrived(self, number: int, output: pb.LLMEngineOutput, is_accepted_here: bool) -> None:
        handle = self._known(number)
        if handle.has_ended:
            handle.late.append(output)
            return
        handle.is_early = handle.is_early or not (handle.accepted or is_accepted_here)
        handle.outputs.append(output)
        handle.ended += bool(output.finish_reason)

    def _known(self, number: int) -> Handle:
        if number not in self.uses:
            raise Violation("a frame names a handle that was never used", seen=number)
        return self.handle(number)

    async def _requests(self) -> AsyncIterator[pb.GenerateMultiplexedRequest]:
        while (frame := await self._sent.get()) is not None:
            yield frame


def rows_of(frame: pb.GenerateMultiplexedResponse) -> list[tuple[int, pb.LLMEngineOutput]]:
    """The rows of a frame as handle and output; columns that do not agree are a Violation."""
    rows = len(frame.handles)
    indexes, counts = list(frame.indexes) or [0] * rows, list(frame.token_counts) or [1] * rows
    lengths = (len(indexes), len(counts), len(frame.first_output_positions))
    if any(length != rows for length in lengths) or sum(counts) != len(frame.token_ids):
        raise Violation("the columns of a frame do not agree", expected=f"{rows} rows", seen=lengths)
    found, begin = [], 0
    for row in range(rows):
        end = begin + counts[row]
        output = pb.LLMEngineOutput(
            token_ids=frame.token_ids[begin:end],
            index=indexes[row],
            first_output_position=frame.first_output_positions[row],
        )
        found.append((frame.handles[row], output))
        begin = end
    return found
