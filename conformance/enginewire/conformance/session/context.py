"""What a check gets: requests, streams, the differential negative check, waiting for idle.

One context per check: it records the check's RPCs and cleans up what the check left behind.
Knows nothing about requirements and verdicts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import grpc

from enginewire import v1 as pb
from enginewire.conformance.session import requests
from enginewire.conformance.session.bounds import Looks, pause
from enginewire.conformance.session.company import ALONE, FULL, MULTIPLEXED, REVISION, USED_ID, Company, draw
from enginewire.conformance.session.session import Program, Session
from enginewire.conformance.session.sizes import Sizes
from enginewire.conformance.wire.client import Client
from enginewire.conformance.wire.connection import Connection
from enginewire.conformance.wire.exchange import Exchange, Metadata
from enginewire.conformance.wire.loads import describe_load, is_idle
from enginewire.conformance.wire.over_a_stream import CallOverStream
from enginewire.conformance.wire.proxy import Proxy
from enginewire.conformance.wire.stream import Stream, num_choices
from enginewire.conformance.wire.violation import NotApplicable, Violation, expect

T = TypeVar("T")

LASTING_SECONDS = 0.3
"""Long enough to be still running after a few calls."""

LASTING_TOKENS = 4
"""At least, however slow the target is: one token says nothing about what comes after the first."""

LEFT = (None, grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED)
"""What a call has whose caller went away: the server may not have noticed."""

ENDED = (grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT)
"""What a call has that left nothing at the server."""

INVALID = (grpc.StatusCode.INVALID_ARGUMENT,)
REFUSALS = (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.INVALID_ARGUMENT)
"""What ERR-17 allows for a request that uses a capability which is not advertised."""
LEFT_OUT = (grpc.StatusCode.UNIMPLEMENTED,)
"""And for an RPC that needs one."""
TAKEN = (grpc.StatusCode.ALREADY_EXISTS,)
"""What ABO-06 says of an id that is live."""


@dataclass(frozen=True, slots=True)
class Greedy:
    """One run past every EOS that comes again: prompt and the tokens it gives at this target.

    `others`: those of the choices behind the first one, where they differ from its tokens.
    """

    prompt: list[int]
    tokens: list[int]
    others: tuple[list[int], ...] = ()

    def of(self, index: int) -> list[int]:
        """The tokens of one choice; without seeds all of them have the same."""
        return self.others[index - 1] if 0 < index <= len(self.others) else self.tokens

    def first_new(self, start: int = 1) -> int:
        """The first position from `start` on whose token occurred at none before it."""
        for position in range(start, len(self.tokens)):
            if self.tokens[position] not in self.tokens[:position]:
                return position
        raise NotApplicable("the model repeats itself: no later token of the greedy run is new")


class Context(Sizes):
    """The target as one check sees it."""

    def __init__(self, session: Session, name: str, company: Company = ALONE) -> None:
        super().__init__(session)
        self.client = session.client()
        self.client.is_crowded = FULL in company.members
        self.company = company
        self._name = name.replace("/", "-")
        self._clients = [self.client]
        self._channels: list[grpc.aio.Channel] = []
        self._proxies: list[Proxy] = []
        self._programs: list[Program] = []
        self._streams: list[Stream] = []
        self._shown: list[Exchange] = []

    @property
    def exchanges(self) -> list[Exchange]:
        """Every RPC of this check, in order."""
        found = [exchange for client in self._clients for exchange in client.exchanges]
        found += [exchange for exchange in self._shown if exchange not in found]
        return sorted(found, key=lambda exchange: exchange.started_at)

    def prefill(self) -> Client:
        """A client of the engine that computes prompts: the other one of a pair, or the target itself."""
        if not self.session.options.prefill:
            return self.client
        return self.connect(self.session.connection.at(self.session.options.prefill))

    def show(self, exchange: Exchange) -> None:
        """Count a shared observation among the evidence of this check."""
        self._shown.append(exchange)

    def request(self, **changes: requests.Value) -> pb.GenerateRequest:
        """A good request with an id of its own and some fields changed, as in `requests.change`.

        NotApplicable where it asks for more than fits the window.
        """
        request_id = f"{self.session.run_id}-{self._name}-{self.session.next_number()}"
        if USED_ID in self.company.members and self.session.past_ids:
            request_id = self.session.past_ids.popleft()
        request = requests.change(requests.good_request(request_id, self.prompt()), **changes)
        self.require_room(request)
        return request

    def start(
        self,
        request: pb.GenerateRequest,
        *,
        client: Client | None = None,
        timeout: float = 0,
        metadata: Metadata = (),
        is_multiplexed: bool = False,
    ) -> Stream:
        """Start a Generate in company. Without a `timeout`, what its size allows at this target.

        One that `is_multiplexed` travels over a stream of its own, if the target has that.
        """
        request = self.company.joined(request)
        if REVISION in self.company.members and not request.client_revision:
            served = (self.info.minimum_client_revision, self.info.maximum_client_revision)
            # Whoever is judged again in the same company has the same turns.
            request.client_revision = served[(self.company.number // 2 + len(self._streams)) % 2]
        conditions, prompt = request.request.stop_conditions, len(request.request.token_ids)
        tokens = self.room(prompt)
        if conditions.HasField("max_tokens"):
            tokens = min(conditions.max_tokens, tokens)
        choices = num_choices(request.request)
        deadline = timeout or self.bounds.generation(tokens * choices, prompt)
        client = client or self.client
        may_be = is_multiplexed and self.config.capabilities.multiplexed
        over_a_stream = may_be or MULTIPLEXED in self.company.members
        make = partial(CallOverStream, client) if over_a_stream else client.generate
        stream = Stream(request, make(request, timeout=deadline, metadata=self.company.metadata + metadata))
        self._streams.append(stream)
        return stream

    async def generate(self, request: pb.GenerateRequest) -> Stream:
        """A Generate that has to succeed, read to its status; a failure is a Violation."""
        return await self.start(request).ok()

    async def refused(self, request: pb.GenerateRequest) -> Exchange:
        """A Generate read to its status, whatever it is."""
        return (await self.start(request).end()).exchange

    async def rejects(
        self,
        change: dict[str, requests.Value],
        *,
        field: str | None = None,
        codes: Iterable[grpc.StatusCode] = INVALID,
        reason: pb.ErrorReason.ValueType | None = None,
        good: pb.GenerateRequest | None = None,
    ) -> Exchange:
        """The differential negative check: a good request passes; with exactly this change it is refused.

        The status must be one of `codes`, before any message, and its detail name `field` (by default
        the changed one; "" = do not look) and `reason`.
        """
        base = good or self.request(max_tokens=1)
        await self.generate(base)
        changed = requests.change(base, request_id=self.request().request_id, **change)
        exchange = await self.refused(changed)
        path = requests.path_of(next(iter(change))) if field is None else field
        require_refusal(exchange, tuple(codes), path, reason)
        return exchange

    async def greedy(self, wanted: int = 16, *, least: int = 1) -> Greedy:
        """What the target generates greedily past every EOS; the run is made once and shared.

        As many tokens as wanted, or as `tokens` allows.
        """
        count = self.tokens(wanted, least=least)
        return await self.once(("greedy", count), lambda: self._greedy(count))

    async def once(self, key: object, observe: Callable[[], Awaitable[T]]) -> T:
        """What checks in the same company share, as in `Session.once`."""
        return await self.session.once((key, self.company), observe)

    def long_request(self, **changes: requests.Value) -> pb.GenerateRequest:
        """A request that runs 20 reaction bounds if nothing ends it, or until the window is full."""
        tokens = self.bounds.tokens_in(20 * self.bounds.reaction)
        request = self.request(**changes)
        room = self.room(len(request.request.token_ids))
        return requests.change(request, max_tokens=min(tokens, room))

    def lasting_request(
        self, seconds: float = LASTING_SECONDS, /, **changes: requests.Value
    ) -> pb.GenerateRequest:
        """A request that is still running after a few calls, and whose end can be waited for."""
        request = self.long_request(**changes)
        longest = request.request.stop_conditions.max_tokens
        tokens = max(self.bounds.tokens_in(seconds), LASTING_TOKENS)
        return requests.change(request, max_tokens=min(tokens, longest))

    def unlike(self, make: Callable[[], pb.GenerateRequest], count: int) -> list[pb.GenerateRequest]:
        """So many requests: one as it is made, each other one beside options of its own, the last a probe."""
        seed, config = self.session.options.seed, self.config
        made = [make(), *(draw(seed, number, config).joined(make()) for number in range(count - 1))]
        made[-1].request.is_probe = count > 1
        return made

    async def idle(self) -> pb.Load:
        """Wait until nothing is held any more; a Violation when it takes longer than the reaction bound."""
        looks = Looks(self.bounds.reaction)
        while True:
            load = await self.client.load()
            if is_idle(load):
                return load
            if looks.are_over():
                raise Violation(
                    f"the server is not idle {self.bounds.reaction:.1f} s after its last request",
                    expected=describe_load(pb.Load()),
                    seen=describe_load(load),
                )
            await pause()

    def connect(self, connection: Connection | None = None, *options: tuple[str, int | str]) -> Client:
        """A client with a connection of its own, with further channel arguments."""
        connection = connection or self.session.connection
        channel = connection.channel(*options)
        self._channels.append(channel)
        self._clients.append(self.session.client(channel, connection.target, connection.metadata))
        return self._clients[-1]

    async def proxy(self) -> tuple[Proxy, Client]:
        """A proxy in front of the target, and a client behind it."""
        proxy = await Proxy.open(self.session.connection.target)
        self._proxies.append(proxy)
        return proxy, self.connect(self.session.connection.at(proxy.target))

    async def spawn(self, target: str = "", extra: str = "") -> Program:
        """Start the program under test without waiting; it is stopped at the end of the check."""
        if self.session.launcher is None:
            raise NotApplicable("needs --launch")
        self._programs.append(await self.session.launcher.spawn(target, extra))
        return self._programs[-1]

    async def opened(self, program: Program) -> Client:
        """A client of a program that was spawned, as soon as anything listens at its address."""
        connection = self.session.connection.at(program.target)
        while not await connection.accepts():
            if program.exit_code is not None:
                raise Violation("the server ended before it listened", seen=f"exit code {program.exit_code}")
            await pause()
        return self.connect(connection)

    async def end(self, request_ids: list[str]) -> None:
        """Abort what may still run: only a courtesy to the checks to come, ABO-04 judges the answer."""
        if request_ids:
            with suppress(Violation):
                await self.session.client().abort(request_ids)

    async def leave(self) -> None:
        """End what the check left running."""
        alive = [stream for stream in self._streams if stream.exchange.code in LEFT]
        for client in self._clients:
            for call in client.calls:
                if call.exchange.code is None:
                    call.cancel()
        await self.end([stream.request.request_id for stream in alive])

    async def close(self) -> None:
        """Leave, and close what the check opened."""
        for client in self._clients:
            client.close()
        await self.leave()
        self.session.past_ids += self._past_ids()
        await asyncio.gather(*(proxy.close() for proxy in self._proxies))
        await asyncio.gather(*(channel.close() for channel in self._channels))
        await asyncio.gather(*(program.stop() for program in self._programs))

    def _past_ids(self) -> list[str]:
        """Ids that are free again for certain, and that no abort is remembered of."""
        sent = [each for each in self._streams if each.request.request_id.startswith(self.session.run_id)]
        requests = [exchange.request for client in self._clients for exchange in client.exchanges]
        taken = {name for each in requests if isinstance(each, pb.AbortRequest) for name in each.request_ids}
        taken |= {stream.request.request_id for stream in sent if stream.exchange.code not in ENDED}
        return [name for name in dict.fromkeys(each.request.request_id for each in sent) if name not in taken]

    def forget(self) -> None:
        """Leave what this check recorded to whoever holds its outcome."""
        self.session.forget(self._clients)

    async def _greedy(self, count: int) -> Greedy:
        # Not recorded for any check: the first one to ask must not be the only one to show it.
        request = self.request(max_tokens=count)
        client = self.session.client()
        stream = await self.start(request, client=client).ok()
        expect(
            len(stream.tokens) >= count,
            "a greedy run has another length",
            expected=count,
            seen=len(stream.tokens),
        )
        return Greedy(list(request.request.token_ids), stream.tokens[:count])


def require_refusal(
    exchange: Exchange,
    codes: tuple[grpc.StatusCode, ...],
    field: str = "",
    reason: pb.ErrorReason.ValueType | None = None,
) -> None:
    """A Violation unless the call was refused with such a status, before any message."""
    names = " or ".join(code.name for code in codes)
    expect(
        exchange.code in codes,
        "the request was not refused as it must be",
        expected=names,
        seen=exchange.status,
    )
    expect(
        not exchange.arrived, "a message came before the refusal", expected="none", seen=len(exchange.arrived)
    )
    if not field and reason is None:
        return
    detail = exchange.detail
    if detail is None:
        raise Violation("the status carries no ErrorDetail", expected="an ErrorDetail", seen=exchange.status)
    if reason is not None:
        named = pb.ErrorReason.Name(reason)
        expect(detail.reason == reason, "the reason is another one", expected=named, seen=detail.reason)
    seen = detail.field.split("[")[0]
    expect(
        not field or field in (seen, detail.field),
        "the refusal names another field",
        expected=field,
        seen=detail.field,
    )
