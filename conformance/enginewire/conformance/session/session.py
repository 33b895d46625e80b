"""What all checks of a run share: the target, its facts, the bounds, the observations made once.

Knows no requirement. A session belongs to one server; a fresh server gets a fresh session.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count
from signal import Signals
from typing import Final, Protocol, TypeVar, cast

import grpc

from enginewire import v1 as pb
from enginewire.conformance.session import requests
from enginewire.conformance.session.bounds import (
    MEASURED_REQUESTS,
    MEASURED_TOKENS,
    Bounds,
    measured,
    slowdown,
)
from enginewire.conformance.session.run_options import RunOptions
from enginewire.conformance.wire.client import Client
from enginewire.conformance.wire.connection import Connection
from enginewire.conformance.wire.exchange import Exchange, Metadata
from enginewire.conformance.wire.foreign.collector import Collector
from enginewire.conformance.wire.presence import absence, is_loading
from enginewire.conformance.wire.violation import Violation

T = TypeVar("T")

MUCH_SLOWER: Final = 2.5
"""Times. Less than this is what any two measurements differ by."""

MOST_SLOWER: Final = 10.0
"""Times. Whoever is slower than that is waited for no longer."""


MOST_PAST_IDS: Final = 256

LOOKS: Final = 5
LOOK_SECONDS: Final = 0.25
"""Between two looks at how many requests have ended, or whether the engine has started."""

LOADING: Final = "the engine still loads; it may take {seconds:g} s, and --ready-timeout gives more"


class Server(Protocol):
    """A server that the kit started."""

    target: str

    async def stop(self) -> None:
        """End it; nothing of it is left."""


class Program(Server, Protocol):
    """A server program: a process of its own that can be signalled."""

    @property
    def group(self) -> int:
        """Its process group."""

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""

    def signal(self, number: Signals) -> None:
        """Send a signal to the process, as a supervisor would."""

    async def ended(self, within: float) -> int:
        """The exit code; TimeoutError when the process runs on."""

    async def ready(self, within: float) -> None:
        """Wait until it says who it is. Raises Unreachable when it ends or takes longer."""

    def output(self) -> str:
        """What it printed so far."""


class Launcher(Protocol):
    """Starts servers of the implementation under test, each fresh."""

    @property
    def at_a_time(self) -> int:
        """How many checks may have a server of their own at the same time."""

    async def launch(self) -> Server:
        """A server that serves. Raises Unreachable when it never does."""

    async def spawn(self, target: str = "", extra: str = "") -> Program:
        """Start the program without waiting; at `target` or a free address, with `extra` arguments."""

    async def close(self) -> None:
        """Nothing that was started is left."""


class Unreachable(Exception):
    """The target cannot be connected to, or never got ready. Not a verdict about its conformance."""


@dataclass(slots=True)
class Session:
    """One server under test."""

    connection: Connection
    time_scale: float = 1.0
    declared: frozenset[str] = frozenset()
    launcher: Launcher | None = None
    options: RunOptions = field(default_factory=RunOptions)
    collector: Collector | None = None
    """Where the target sends its spans, when it was told to."""
    info: pb.GetEngineInfoResponse = field(default_factory=pb.GetEngineInfoResponse)
    bounds: Bounds = field(default_factory=Bounds)
    others: int = 0
    """Requests that ran, waited or ended while the kit measured, and are not its own."""
    is_shared: bool = False
    """Requests of somebody else were seen to end."""
    drawn: str = ""
    """Which cases were drawn, for the head of the report."""
    run_id: str = field(default_factory=lambda: f"kit-{secrets.token_hex(4)}")
    past_ids: deque[str] = field(default_factory=lambda: deque(maxlen=MOST_PAST_IDS))
    """Of requests that have ended, the oldest first."""
    _channel: grpc.aio.Channel | None = None
    _numbers: count[int] = field(default_factory=count)
    _clients: list[Client] = field(default_factory=list)
    _observations: dict[object, asyncio.Task[object]] = field(default_factory=dict)

    @property
    def channel(self) -> grpc.aio.Channel:
        """The channel that checks share."""
        self._channel = self._channel or self.connection.channel()
        return self._channel

    def client(
        self,
        channel: grpc.aio.Channel | None = None,
        target: str = "",
        metadata: Metadata | None = None,
    ) -> Client:
        """A client that records for itself, over the shared channel or its own, which may lead elsewhere."""
        client = Client(
            channel or self.channel,
            metadata=self.connection.metadata if metadata is None else metadata,
            timeout=2 * self.bounds.answer,
            target=target or self.connection.target,
        )
        self._clients.append(client)
        return client

    def forget(self, clients: Collection[Client]) -> None:
        """Let go of clients whose calls are over: a run is long, and each call keeps all its messages."""
        self._clients = [client for client in self._clients if client not in clients]

    def at(self, target: str) -> Session:
        """A session of the same run with another server."""
        return Session(
            connection=self.connection.at(target),
            time_scale=self.time_scale,
            declared=self.declared,
            launcher=self.launcher,
            options=self.options,
        )

    @property
    def exchanges(self) -> Iterator[Exchange]:
        """Every RPC of this run that nobody has let go of: measurements, shared observations."""
        return (exchange for client in self._clients for exchange in client.exchanges)

    def next_number(self) -> int:
        """1, 2, 3, … for unique request ids."""
        return next(self._numbers) + 1

    async def open(self, say: Callable[[str], None] = lambda text: None) -> None:
        """Connect, read the facts, measure. Raises Unreachable; whatever answers is let in.

        `say` is told why it takes long.
        """
        self.bounds = replace(self.bounds, scale=self.time_scale)
        try:
            async with asyncio.timeout(self.bounds.answer):
                await self.channel.channel_ready()
        except TimeoutError:
            raise Unreachable(f"nothing listens at {self.connection.target}") from None
        # What is wrong with an answer is for the checks to say.
        with suppress(Violation):
            self.info = await self._first_answer(say)
            before = await self._load()
            self.bounds = await self._measure()
            ended = (await self._load()).requests_finished - before.requests_finished
            self.is_shared = ended > MEASURED_REQUESTS
            self.others = before.running + before.waiting or max(ended - MEASURED_REQUESTS, 0)

    async def close(self) -> None:
        """Close the channel and forget what was observed."""
        for task in self._observations.values():
            task.cancel()
        await asyncio.gather(*self._observations.values(), return_exceptions=True)
        if self._channel:
            await self._channel.close()

    async def is_slower(self) -> bool:
        """Look at the speed again; where it is much lower than at first, the bounds are wider from now on.

        So what a machine needs that got busy meanwhile is not held against the target.
        """
        again = self._small(MEASURED_REQUESTS + self.next_number())
        times = await slowdown(self.client(), again, self.bounds)
        if times < MUCH_SLOWER:
            return False
        # Of the speed that was measured, however often it is looked at.
        scale = max(self.bounds.scale, self.time_scale * min(times, MOST_SLOWER))
        self.bounds = replace(self.bounds, scale=scale)
        self._forget_observations()
        return True

    async def is_found_shared(self) -> bool:
        """Whether requests end again and again while nothing of ours runs; remembered.

        One look is not enough: what a server holds too long ends some time too.
        """
        ended, count = list[int](), (await self._load()).requests_finished
        while not self.is_shared and len(ended) < LOOKS:
            await asyncio.sleep(LOOK_SECONDS)
            before, count = count, (await self._load()).requests_finished
            ended.append(count - before)
            # What was ours when the first look began does not count.
            self.is_shared = sum(number > 0 for number in ended[1:]) > 1
        return self.is_shared

    def _forget_observations(self) -> None:
        """What was observed, perhaps only in part, is observed anew by whoever asks next."""
        self._observations = {key: task for key, task in self._observations.items() if not task.done()}

    async def once(self, key: object, observe: Callable[[], Awaitable[T]]) -> T:
        """The result of `observe`, made once per session and key; its failure is shared as well."""
        if key not in self._observations:
            self._observations[key] = asyncio.ensure_future(cast(Awaitable[object], observe()))
        # One check that gives up must not take the observation from the others.
        return cast(T, await asyncio.shield(self._observations[key]))

    async def _first_answer(self, say: Callable[[str], None]) -> pb.GetEngineInfoResponse:
        """The facts. Raises Unreachable where something listens that has nobody behind it."""
        exchange = await self._once_loaded(say)
        if exchange.code is not grpc.StatusCode.UNAVAILABLE:
            return cast(pb.GetEngineInfoResponse, exchange.response())
        if how := await absence(self.connection):
            raise Unreachable(f"{self.connection.target}: {how}")
        return await self.client().info()

    async def _once_loaded(self, say: Callable[[str], None]) -> Exchange:
        """GetEngineInfo of an engine that has started. Raises Unreachable where that takes too long."""
        ready_seconds, deadline = self.options.ready_seconds, 0.0
        while True:
            exchange = await self.client().ask("DiscoveryService.GetEngineInfo", pb.GetEngineInfoRequest())
            if not is_loading(exchange):
                return exchange
            if not deadline:
                deadline = time.monotonic() + ready_seconds
                say(LOADING.format(seconds=ready_seconds))
            elif time.monotonic() > deadline:
                raise Unreachable(f"{self.connection.target} still loads after {ready_seconds:g} s")
            await asyncio.sleep(LOOK_SECONDS)

    async def _load(self) -> pb.Load:
        """Empty where the target tells none."""
        with suppress(Violation):
            return await self.client().load()
        return pb.Load()

    async def _measure(self) -> Bounds:
        """A target that cannot generate gets the floors; its checks will say what is wrong."""
        small = map(self._small, range(MEASURED_REQUESTS))
        return await measured(self.client(), small, self.time_scale, self.options.patience)

    def _small(self, number: int) -> pb.GenerateRequest:
        prompt = requests.prompt(requests.PROMPT_TOKENS, self.info.config.vocab_size, salt=number)
        good = requests.good_request(f"{self.run_id}-measure-{number}", prompt)
        return requests.change(good, max_tokens=MEASURED_TOKENS)
