"""What a check of a backend gets: scenes to play, requests to send, bounds.

One per check, so that its calls are its evidence. Knows nothing about requirements and verdicts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from itertools import count
from typing import Any, Protocol, TypeVar

from enginewire import v1 as pb
from enginewire.conformance.client_side.answer import Answer
from enginewire.conformance.client_side.run_options import RunOptions
from enginewire.conformance.client_side.stage.engine import ScriptedEngine
from enginewire.conformance.client_side.stage.facts import PLAIN, Facts
from enginewire.conformance.client_side.stage.script import Step
from enginewire.conformance.client_side.stage.turn import Scene, Turn
from enginewire.conformance.session import requests
from enginewire.conformance.session.bounds import Bounds
from enginewire.conformance.wire.client import Client
from enginewire.conformance.wire.exchange import Exchange, Metadata
from enginewire.conformance.wire.violation import expect

OUTPUT_TOKENS = 64
QUIET_SECONDS = 0.1
_numbers = count(1)

T = TypeVar("T")


class Backend(Protocol):
    """A backend under test, the engine behind it, and how to reach it."""

    engine: ScriptedEngine
    bounds: Bounds

    def client(self, *, narrow: bool = False) -> Client:
        """A client of the backend, recording for itself. A narrow one gets no more than it reads."""

    async def stop(self) -> None:
        """End both."""


class Backends(Protocol):
    """Where backends come from, the options of the run, and what its checks share."""

    options: RunOptions

    async def once(self, name: str, make: Callable[[], Awaitable[T]]) -> T:
        """What `make` gives, made for whoever asks first."""

    def engine(self, facts: Facts = PLAIN) -> ScriptedEngine:
        """Such an engine, with GenerateMultiplexed as all of this run have it, for a backend of one's own."""

    async def shared(self, facts: Facts = PLAIN) -> Backend:
        """The backend in front of such an engine; the same for all checks."""

    async def fresh(self, engine: ScriptedEngine) -> Backend:
        """Another backend in front of this engine. Raises Unreachable when it does not serve."""


class ClientContext:
    """The backend as one check sees it."""

    def __init__(self, backends: Backends, backend: Backend) -> None:
        self.backends = backends
        self.backend = backend
        self.client = backend.client()
        self._clients = [self.client]
        self._scenes: list[Scene] = []
        self._shown: list[Exchange] = []

    @property
    def bounds(self) -> Bounds:
        """How long things may take here."""
        return self.backend.bounds

    @property
    def exchanges(self) -> list[Exchange]:
        """The calls of the check, and the calls of the backend that they led to."""
        found = [exchange for client in self._clients for exchange in client.exchanges]
        found += [turn.exchange for scene in self._scenes for turn in scene.turns]
        return sorted([*found, *self._shown], key=lambda exchange: exchange.started_at)

    def show(self, exchanges: Sequence[Exchange]) -> None:
        """Calls that others made, as evidence of this check."""
        self._shown += exchanges

    async def on(self, backend: Backend) -> ClientContext:
        """The same check in front of another backend."""
        other = ClientContext(self.backends, backend)
        self._clients.append(other.client)
        other._scenes = self._scenes
        return other

    def play(self, *script: Step, then: Sequence[Sequence[Step]] = (), ending: Sequence[int] = b"") -> Scene:
        """A prompt of its own, with this ending, that the engine answers with this script.

        `then`, for further attempts.
        """
        prompt = [*f"prompt {next(_numbers)}".encode(), *ending]
        self._scenes.append(self.backend.engine.play(prompt, [script, *then]))
        return self._scenes[-1]

    def start(
        self,
        scene: Scene,
        *,
        timeout: float = 0,
        metadata: Metadata = (),
        client: Client | None = None,
        **changes: requests.Value,
    ) -> Answer:
        """Send a request for the scene with some fields changed, as in `requests.change`."""
        good = requests.good_request("", scene.prompt)
        changed = requests.change(good, **{"max_tokens": OUTPUT_TOKENS, "ignore_eos": None, **changes})
        asked = pb.BackendServiceGenerateRequest(
            request_id=f"kit-client-{next(_numbers)}", token_ids=True, request=changed.request
        )
        seconds = timeout or 2 * self.patience
        client = client or self.client
        return Answer(client.call("BackendService.Generate", asked, metadata=metadata, timeout=seconds))

    async def start_late(self, scene: Scene, **changes: Any) -> Answer:
        """The same for a caller that reads nothing until the engine has no more to say, or is not heard."""
        self._clients.append(self.backend.client(narrow=True))
        answer = self.start(scene, client=self._clients[-1], **changes)
        turn = await self.first_turn(scene)
        said = 0
        while (heard := len(turn.exchange.arrived)) > said:
            said = heard
            await asyncio.sleep(QUIET_SECONDS)
        return answer

    async def first_turn(self, scene: Scene) -> Turn:
        """The first call of the backend for this scene; none within the bound is a Violation."""
        with suppress(TimeoutError):
            await asyncio.wait_for(scene.arrived.wait(), self.patience)
        expect(bool(scene.turns), f"the engine was not asked within {self.patience:.1f} s")
        return scene.turns[0]

    @property
    def patience(self) -> float:
        """Seconds for what a backend does at once: only one that never does it makes a check wait so long."""
        return 2 * self.bounds.answer

    async def left(self, turn: Turn, cause: str) -> None:
        """The backend leaves the engine's call within the bound, or it is a Violation."""
        with suppress(TimeoutError):
            await asyncio.wait_for(turn.left.wait(), self.patience)
        expect(
            turn.left.is_set(),
            f"the engine was not told within {self.patience:.1f} s: {cause}",
            expected="the call is cancelled or the request aborted",
            seen=turn.exchange.status,
        )

    async def close(self) -> None:
        """End what the check left running."""
        for client in self._clients:
            for call in client.calls:
                if call.exchange.code is None:
                    call.cancel()
        for scene in self._scenes:
            for turn in scene.turns:
                turn.left.set()


def only_turn(scene: Scene) -> Turn:
    """The one call of the backend for this scene; another number of them is a Violation."""
    expect(len(scene.turns) == 1, "the backend called the engine once", expected=1, seen=len(scene.turns))
    return scene.turns[0]
