"""What a server says to the workload, word for word, without a wire: an oracle that knows no requirement.

Two servers that say the same are the same here. Nothing waits for time but a drain, so a server says the same
each time: ids that are drawn are left out. Whoever hangs is given up after some turns of the event loop.
"""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final, cast

from google.protobuf.message import Message

from enginewire import v1 as pb
from enginewire.conformance.proof.second_order.workload import PROMPTS, requests, wrong_requests
from enginewire.conformance.reference.refusal import Refusal
from enginewire.conformance.reference.server import Context, Reference
from enginewire.conformance.reference.service import Call
from enginewire.conformance.wire.foreign import health_types

Answer = Any
"""An awaitable message, or messages."""
Said = dict[str, tuple[str, ...]]
"""By call: its messages, then its end."""

TURNS: Final = 8_000
"""Of the event loop, to answer what was asked: some times what the reference needs."""
FEWEST_TURNS: Final = 250
"""For a server that hangs again and again: still what the reference needs for a single request."""
INPUTS: Final[tuple[list[tuple[int, ...]], ...]] = ([PROMPTS[1]], [PROMPTS[2], PROMPTS[0]] * 10, [()], [])
"""What is to be embedded: one, many, an empty one, none."""
DRAIN_SECONDS: Final = 10.0
ONE_AFTER_THE_OTHER: Final = 90
AT_ONCE: Final = 36
DRAWN: Final = re.compile(r"\b[0-9a-f]{8}\b")


class _Context:
    """What a method of the reference asks of gRPC."""

    def __init__(self, said: list[str]) -> None:
        self._said = said

    def time_remaining(self) -> float | None:
        return None

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return ()

    async def send_initial_metadata(self, metadata: object) -> None:
        self._said.append(f"accepted {metadata}")

    async def abort(self, code: object, text: str, trailers: object = ()) -> None:
        self._said.append(f"{code} {text}")
        raise asyncio.CancelledError


@dataclass
class Probe:
    """One server and what it says."""

    server: Reference
    said: dict[str, list[str]] = field(default_factory=dict)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    turns: int = TURNS

    async def parts(self) -> AsyncIterator[Said]:
        """Each part of the workload, with all that was said in it."""
        for part in (self._alone, self._refused, self._at_once, self._left, self._others, self._ended):
            self.said, self.turns = {}, TURNS
            await part()
            yield {name: tuple(lines) for name, lines in self.said.items()}

    # -- parts of the workload

    async def _alone(self) -> None:
        self._ask(
            "load adapter",
            self._route("AdminService.LoadAdapter", pb.LoadAdapterRequest(name="alpha", source="alpha")),
        )
        await self._settled()
        for request in requests("alone", ONE_AFTER_THE_OTHER):
            self._ask(request.request_id, self._generate(request))
            await self._settled()
        self._look("idle")
        await self._settled()

    async def _refused(self) -> None:
        for request in wrong_requests("wrong"):
            self._ask(request.request_id, self._generate(request))
            await self._settled()
        submits = [
            pb.Submit(handle=number, generate=wrong)
            for number, wrong in enumerate(wrong_requests("mux-wrong"))
        ]
        self._ask("stream of mistakes", self._multiplexed([pb.GenerateMultiplexedRequest(submits=submits)]))
        await self._settled()

    async def _at_once(self) -> None:
        for request in requests("at-once", AT_ONCE):
            self._ask(request.request_id, self._generate(request))
        submits = [
            pb.Submit(handle=number, generate=each) for number, each in enumerate(requests("mux", AT_ONCE))
        ]
        frames = [
            pb.GenerateMultiplexedRequest(submits=submits[start : start + 6])
            for start in range(0, AT_ONCE, 6)
        ]
        frames.append(pb.GenerateMultiplexedRequest(abort=pb.AbortHandles(handles=[1, 8, 99])))
        self._ask("stream", self._multiplexed(frames))
        await self._turns(20)
        self._look("busy")
        for number, request in enumerate(wrong_requests("wrong-beside")):
            if number % 3 == 0:
                self._ask(request.request_id, self._generate(request))
        for request in requests("at-once", 6):
            self._ask(f"again {request.request_id}", self._generate(request))
        ids = ["at-once-1", "at-once-30", "mux-3", "nobody", "alone-1"]
        self._ask("abort", self.server.abort_requests(pb.AbortRequest(request_ids=ids)))
        await self._settled()
        self._look("after all")
        await self._settled()

    async def _left(self) -> None:
        """Callers that go away, callers that do not read, and callers that abort."""
        for number, request in enumerate(requests("left", 24)):
            request.request.stop_conditions.max_tokens = max(request.request.stop_conditions.max_tokens, 30)
            self._ask(
                request.request_id,
                self._generate(request),
                most=2 if number % 3 == 0 else 0,
                slow=40 * (number % 3 == 1),
            )
        await self._turns(60)
        self._look("left")
        ids = [f"left-{number}" for number in range(2, 24, 3)]
        self._ask("abort", self.server.abort_requests(pb.AbortRequest(request_ids=ids)))
        await self._settled()
        self._ask("abort after", self.server.abort_requests(pb.AbortRequest(request_ids=ids)))
        self._ask("abort nothing", self.server.abort_requests(pb.AbortRequest()))
        self._look("after")
        await self._settled()

    async def _others(self) -> None:
        """What is no generation, while nothing runs and while something does."""
        for beside in (0, 6):
            for request in requests(f"beside-{beside}", beside):
                self._ask(request.request_id, self._generate(request))
            await self._turns(3)
            for number, prompts in enumerate(INPUTS):
                inputs = [pb.TokenSequence(token_ids=prompt) for prompt in prompts]
                body = pb.PreprocessedEmbeddingRequest(token_ids=inputs)
                embed = pb.EmbedRequest(request_id=f"embed-{number}", request=body)
                self._ask(f"embed {beside} {number}", self._route("EmbeddingService.Embed", embed))
            for name in ("alpha", "beta", "nobody"):
                load = pb.LoadAdapterRequest(name=name, source=name)
                self._ask(f"load {beside} {name}", self._route("AdminService.LoadAdapter", load))
            self._ask(
                f"adapters {beside}", self._route("AdminService.ListAdapters", pb.ListAdaptersRequest())
            )
            self._ask(
                f"tokenizer {beside}", self._route("DiscoveryService.GetTokenizer", pb.GetTokenizerRequest())
            )
            self._ask(
                f"watch {beside}", self._route("DiscoveryService.WatchLoad", pb.WatchLoadRequest()), most=1
            )
            self._ask(
                f"events {beside}",
                self._route("KvService.SubscribeKvEvents", pb.SubscribeKvEventsRequest()),
                most=1,
            )
            self._look(f"others {beside}")
            await self._settled()
            for name in ("beta", "alpha", "nobody"):
                unload = pb.UnloadAdapterRequest(name=name)
                self._ask(f"unload {beside} {name}", self._route("AdminService.UnloadAdapter", unload))
            reset = pb.ResetPrefixCacheRequest()
            self._ask(f"reset {beside}", self._route("AdminService.ResetPrefixCache", reset))
            await self._settled()

    async def _ended(self) -> None:
        """A drain with something to wait for, and a clean-up."""
        for request in requests("last", 6):
            self._ask(request.request_id, self._generate(request))
        await self._turns(2)
        self._ask("drain", self._ends_of_drain())
        await self._turns(1)
        for request in requests("too-late", 3):
            self._ask(request.request_id, self._generate(request))
        self._look("draining")
        with suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_SECONDS):
                await asyncio.gather(*self.tasks)
        await self._settled()
        self._ask("clean-up", self.server.cleanup(pb.CleanupRequest(abort_in_flight=True)))
        await self._settled()
        for request in requests("after-the-end", 3):
            self._ask(request.request_id, self._generate(request))
        self._look("ended")
        await self._settled()

    async def _ends_of_drain(self) -> pb.DrainResponse:
        """Its first message and its last: how many come between, and what they count, is a matter of time."""
        messages = [message async for message in self.server.drain(pb.DrainRequest())]
        return pb.DrainResponse(
            state=messages[-1].state, running=messages[0].running, waiting=messages[0].waiting
        )

    # -- how it is asked

    def _generate(self, request: pb.GenerateRequest) -> Callable[[Call], Answer]:
        return lambda call: self.server.generate(request, call)

    def _route(self, name: str, request: Message) -> Callable[[Call], Answer]:
        return lambda call: self.server.routes()[name](request, call)

    def _multiplexed(self, frames: list[pb.GenerateMultiplexedRequest]) -> Callable[[Call], Answer]:
        async def sent() -> AsyncIterator[pb.GenerateMultiplexedRequest]:
            for frame in frames:
                yield frame
                await asyncio.sleep(0)

        return lambda call: self.server.generate_multiplexed(sent(), call)

    def _look(self, when: str) -> None:
        """All that can be read."""
        self._ask(f"{when}: load", self.server.get_load())
        self._ask(f"{when}: info", self.server.info())
        for service in (health_types.READINESS, health_types.LIVENESS, "nobody"):
            self._ask(f"{when}: health {service}", self.server.check_health(service))

    def _ask(self, name: str, answer: Answer, *, most: int = 0, slow: int = 0) -> None:
        said = self.said.setdefault(name, [])
        self.tasks.append(asyncio.ensure_future(self._listen(said, answer, most, slow)))

    async def _listen(self, said: list[str], answer: Answer, most: int, slow: int) -> None:
        try:
            given = answer(Call(cast(Context, _Context(said)))) if inspect.isfunction(answer) else answer
            if inspect.isawaitable(given):
                said.append(_line(await given))
            else:
                await _read(said, given, most, slow)
            said.append("OK")
        except Refusal as refusal:
            said.append(_line(refusal.status()))
        except Exception as fault:  # noqa: BLE001  # a server that crashes says something else as well
            said.append(type(fault).__name__)

    async def _turns(self, count: int) -> None:
        for _ in range(count):
            await asyncio.sleep(0)

    async def _settled(self) -> None:
        """Wait for everything that was asked; who hangs is left, and the next time sooner."""
        for _ in range(self.turns):
            while self.tasks and self.tasks[-1].done():
                self.tasks.pop()
            if not self.tasks:
                break
            await asyncio.sleep(0)
        else:
            self.turns = max(self.turns // 4, FEWEST_TURNS)
        for task in self.tasks:
            if not task.done():
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
        self.tasks.clear()


async def _read(said: list[str], messages: AsyncIterator[Message], most: int, slow: int) -> None:
    async with aclosing(cast(Any, messages)) as reading:
        async for message in reading:
            said.append(_line(message))
            if len(said) == most:
                return
            for _ in range(slow):
                await asyncio.sleep(0)


def _line(message: Message) -> str:
    if isinstance(message, pb.Status):
        detail = pb.ErrorDetail()
        message.details[0].Unpack(detail) if message.details else None
        return DRAWN.sub("*", f"{message.code} {message.message} {detail}")
    return message.SerializeToString(deterministic=True).decode("latin-1")


async def _started(make: Callable[[], Reference]) -> tuple[Reference, list[asyncio.Task[None]]]:
    server = make()
    server.settings = replace(server.settings, step_seconds=0.0)
    server.lifetime_id, server.instance_id = "life", "instance"
    return server, [asyncio.ensure_future(server.start()), asyncio.ensure_future(server.run())]


async def transcript(make: Callable[[], Reference], *known: list[Said]) -> list[Said]:
    """All that a server says; no more than it takes to tell it from all that are `known`."""
    server, tasks = await _started(make)
    found: list[Said] = []
    try:
        await asyncio.sleep(0.001)
        async for said in Probe(server).parts():
            found.append(said)
            if known and all(found != other[: len(found)] for other in known):
                break
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return found
