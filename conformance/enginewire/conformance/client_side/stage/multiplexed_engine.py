"""GenerateMultiplexed of the scripted engine: the scripts of many requests on one stream.

Every other frame holds several outputs, those that are only ids as rows, and so does one that accepts. A
script that ends without a terminal ends the whole stream, for a handle alone cannot. Judges nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any, Final

import grpc

from enginewire import v1 as pb
from enginewire.conformance.client_side.stage.script import BEFORE_ACCEPTANCE, Speaker, Step
from enginewire.conformance.client_side.stage.turn import Scripted, Turn
from enginewire.conformance.wire.tasks import stop

if TYPE_CHECKING:
    from enginewire.conformance.client_side.stage.engine import ScriptedEngine

NAME: Final = "EngineService.GenerateMultiplexed"
GATHERED: Final = 4
"""Things that happened, at most, in one frame."""
ONLY_IDS: Final = {"index", "first_output_position", "token_ids"}

Requests = AsyncIterator[pb.GenerateMultiplexedRequest]
Frame = pb.GenerateMultiplexedResponse


async def play_multiplexed(
    engine: ScriptedEngine, requests: Requests, context: grpc.aio.ServicerContext[Any, Any]
) -> AsyncIterator[Frame]:
    """Frames until both sides are done."""
    await context.send_initial_metadata(())
    stream, steps = _Stream(engine), count(1)
    reading = asyncio.ensure_future(stream.read(requests))
    try:
        while events := await stream.some(GATHERED if (step := next(steps)) % 2 else 1):
            yield frame_of(step, events)
    finally:
        # However it ended, by its end, a cancellation or GeneratorExit.
        await stop([reading, *stream.playing])
        stream.leave()


class _Stream:
    """One stream: its live handles, and what is to be said on it."""

    def __init__(self, engine: ScriptedEngine) -> None:
        self.events: asyncio.Queue[pb.HandleEvent | None] = asyncio.Queue()
        self.playing: list[asyncio.Task[None]] = []
        self._engine = engine
        self._live: dict[int, Turn] = {}
        self._is_closing = False

    async def read(self, requests: Requests) -> None:
        """What the backend sends, until it half-closes."""
        async for frame in requests:
            for submit in frame.submits:
                self._submit(submit)
            for handle in frame.abort.handles:
                if handle in self._live:
                    self._live[handle].left.set()
        self._is_closing = True
        self._end_if_done()

    async def some(self, most: int) -> list[pb.HandleEvent]:
        """What happened, when something has; nothing at the end of the stream."""
        found = [await self.events.get()]
        if found[0] is not None and found[0].HasField("accepted"):
            # Never alone where there are rows already: a client reads it before them, events though it is.
            most = GATHERED
        while len(found) < most and found[-1] is not None and not self.events.empty():
            found.append(self.events.get_nowait())
        if found[-1] is None and len(found) > 1:
            self.events.put_nowait(None)
        return [event for event in found if event is not None]

    def leave(self) -> None:
        """The backend hears nothing more of what is live."""
        for turn in self._live.values():
            turn.leave()

    def _submit(self, submit: pb.Submit) -> None:
        seconds = submit.timeout.ToTimedelta().total_seconds() if submit.HasField("timeout") else None
        turn = self._engine.turn(submit.generate, seconds, NAME, submit.metadata)
        self._live[submit.handle] = turn
        script = self._engine.script(turn)
        self.playing.append(asyncio.ensure_future(self._play(submit.handle, turn, script)))

    async def _play(self, handle: int, turn: Turn, script: Sequence[Step]) -> None:
        speaker = Speaker(turn.part)
        if not isinstance(script[0], BEFORE_ACCEPTANCE):
            accepted = pb.Accepted(engine_lifetime_id=turn.lifetime_id, request_id=turn.request.request_id)
            self.events.put_nowait(pb.HandleEvent(handle=handle, accepted=accepted))
        try:
            async for item in self._engine.outputs(turn, script, speaker):
                self.events.put_nowait(turn.arrive(_event(handle, item)))
            turn.exchange.code = grpc.StatusCode.OK
            if not speaker.is_finished:
                self.events.put_nowait(None)
        except Scripted as failure:
            self.events.put_nowait(pb.HandleEvent(handle=handle, status=failure.step.detail))
        turn.exchange.ended_at = time.monotonic()
        # The handle may be in use again already.
        if self._live.get(handle) is turn:
            del self._live[handle]
        self._end_if_done()

    def _end_if_done(self) -> None:
        if self._is_closing and not self._live:
            self.events.put_nowait(None)


def _event(handle: int, item: pb.LLMEngineOutput | pb.EngineEvent) -> pb.HandleEvent:
    if isinstance(item, pb.EngineEvent):
        return pb.HandleEvent(handle=handle, engine_event=item)
    return pb.HandleEvent(handle=handle, output=item)


def frame_of(step: int, events: Sequence[pb.HandleEvent]) -> Frame:
    """The events in one frame: a row for each choice, of handles of which nothing else came before."""
    frame, others, rows = Frame(step=step), set[int](), set[tuple[int, int]]()
    for event in events:
        output = event.output
        fields = {field.name for field, _ in output.ListFields()}
        choice = (event.handle, output.index)
        if output.token_ids and fields <= ONLY_IDS and event.handle not in others and choice not in rows:
            rows.add(choice)
            frame.handles.append(event.handle)
            frame.indexes.append(output.index)
            frame.token_counts.append(len(output.token_ids))
            frame.first_output_positions.append(output.first_output_position)
            frame.token_ids.extend(output.token_ids)
        else:
            frame.events.append(event)
            if not event.HasField("accepted"):
                others.add(event.handle)
    return frame
