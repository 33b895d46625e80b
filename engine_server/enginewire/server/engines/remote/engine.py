"""An engine in another process: its queue is here, so that it sees no more choices than it has slots for.

When it is gone, so is this server. Knows nothing about how the engine is reached.
"""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final, Generic, Protocol, TypeVar

from enginewire import v1 as pb
from enginewire.server.engines.base import BaseEngine
from enginewire.server.engines.interface import GenerateContext
from enginewire.server.engines.iterator_driver import IteratorDriver
from enginewire.server.engines.remote.options import RemoteOptions
from enginewire.server.engines.remote.watch import Watch
from enginewire.server.engines.step_streams import open_choices
from enginewire.server.failures import Draining, EngineDead, EngineError, Stuck
from enginewire.server.validation.payloads import prompt_length

GRACE_SECONDS: Final = 1.0
"""For the server to tell of the death: callers who hear of it earlier come back at once."""


class Call(Protocol):
    """One request at the engine. `heard_at`: when something last came, on time.monotonic()."""

    heard_at: float
    num_tokens: int

    def fail(self, failure: EngineError) -> None:
        """End the call here and now: whoever reads it gets `failure`."""


CallT = TypeVar("CallT", bound=Call)


class RemoteEngine(BaseEngine, Generic[CallT]):
    """What is left to do is to connect, in `start`, and to call, in `generate`."""

    def __init__(self, options: RemoteOptions) -> None:
        super().__init__()
        self._options = options
        self._watch: Watch | None = None
        self._watching: asyncio.Task[None] | None = None
        self._calls: dict[GenerateContext, CallT] = {}
        self._counts = pb.Load()

    @abstractmethod
    async def disconnect(self) -> None:
        """End every call. The engine itself is not ours to end."""

    def has_more_to_see(self) -> bool:
        """True while a look at the engine is due soon."""
        return False

    def watch_over(self, look: Callable[[float | None], Awaitable[None]]) -> None:
        """Take the slots of `config`, and look after the engine from now on."""
        self._slots.num_slots = self.config.max_num_seqs
        self._watch = Watch(self._options.target, look, self._end_all)
        self._watching = asyncio.create_task(self._watch.run(self._after_look), name="upstream watch")

    async def drain(self) -> None:
        """Hand back what waits."""
        self._slots.refuse_waiting(lambda: Draining("the server is draining"))

    async def cleanup(self) -> None:
        """Look after the engine no more."""
        if self._watching is not None:
            self._watching.cancel()
        await self.disconnect()

    def load(self) -> pb.Load:
        """Requests as they are known here."""
        load = pb.Load()
        load.CopyFrom(self._counts)
        load.running, load.waiting = self._slots.num_running, self._slots.num_waiting
        load.tokens_generated += sum(call.num_tokens for call in self._calls.values())
        return load

    @property
    def is_dead(self) -> bool:
        """The engine is gone, for good."""
        return self._watch is not None and bool(self._watch.death)

    def has_begun(self, context: GenerateContext) -> bool:
        """False for a request that waits for a slot."""
        return context in self._calls

    def stalled_for(self) -> float:
        """Seconds for which the engine owes an answer; infinite when it is gone."""
        return self._watch.stalled_for() if self._watch else 0.0

    def look(self) -> None:
        """Something has happened that is worth a look at the engine."""
        if self._watch is not None:
            self._watch.look()

    async def looked(self) -> None:
        """A connection was lost: wait until it is known whether the engine is gone.

        Whoever failed before would come back at once, to an engine that is about to fail once more.
        """
        if self._watch is not None:
            await self._watch.looked()
        if self.is_dead:
            await asyncio.sleep(GRACE_SECONDS)

    @asynccontextmanager
    async def turn(
        self, request: pb.PreprocessedRequest, context: GenerateContext, begin: Callable[[], CallT]
    ) -> AsyncIterator[CallT]:
        """The call that `begin` makes, once there is a slot for every choice. Raises EngineDead."""
        waiting_tokens = prompt_length(request)
        self._counts.waiting_tokens += waiting_tokens
        try:
            async with self._slots.take(open_choices(request, self.config.role)):
                self._counts.waiting_tokens -= waiting_tokens
                waiting_tokens = 0
                if self.is_dead:
                    raise dead()
                call = self._calls[context] = begin()
                context.running_since = time.monotonic()
                try:
                    yield call
                finally:
                    self._end(call, context)
        finally:
            self._counts.waiting_tokens -= waiting_tokens

    def _end(self, call: CallT, context: GenerateContext) -> None:
        del self._calls[context]
        self._counts.tokens_generated += call.num_tokens

    def _after_look(self) -> bool:
        """End calls in which nothing comes any more."""
        longest = self._options.silence_timeout
        latest = time.monotonic() - longest
        for call in [call for call in self._calls.values() if call.heard_at < latest]:
            call.fail(Stuck(f"the engine has sent nothing for {longest:g} s"))
        return self.has_more_to_see()

    def _end_all(self) -> None:
        """The engine is gone. The server says so first, and then ends its requests."""
        asyncio.get_running_loop().call_later(GRACE_SECONDS, self._fail_all)

    def _fail_all(self) -> None:
        self._slots.refuse_waiting(dead)
        for call in list(self._calls.values()):
            call.fail(dead())


class RemoteDriver(IteratorDriver):
    """A `RemoteEngine` as the server drives it."""

    def __init__(self, engine: RemoteEngine[CallT]) -> None:
        self._remote = engine
        super().__init__(engine)

    def submit(self, request: pb.PreprocessedRequest, context: GenerateContext) -> None:
        """Refuse what can never be served any more."""
        if self._remote.is_dead:
            raise dead()
        super().submit(request, context)

    async def abort(self, context: GenerateContext) -> None:
        """What waits here ends at once, and the engine never hears of it."""
        task = self._tasks.get(context)
        if task is not None and not self._remote.has_begun(context):
            task.cancel()
        else:
            await super().abort(context)

    def stalled_for(self) -> float:
        """Seconds for which the engine owes an answer; infinite when it is gone."""
        return self._remote.stalled_for()


def dead() -> EngineDead:
    """The failure of every request of an engine that is gone."""
    return EngineDead("the engine died")
