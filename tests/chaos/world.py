"""Engines in trouble, callers that ask all the while, and what was heard.

Faults are drawn from a seed, so a run does the same again; when each of them strikes depends on the machine.
Nothing here is measured in time: what is judged is what each caller got in the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from tokenizers import Tokenizer

from enginewire import v1 as pb
from enginewire.backend.backend import Backend
from enginewire.backend.decoding.vocabulary import Vocabulary
from enginewire.backend.engines.connection.client import EngineClient
from enginewire.backend.engines.endpoints import Endpoints
from enginewire.backend.replay.retry import RetryBudget, RetryPolicy
from enginewire.server.engines.mocker.tokenizer import byte_tokenizer
from tests.backend.asking import Heard, hear
from tests.chaos.fleet import MOCKER, Certificates, Engine, fleet
from tests.chaos.history import Record, Truth, tally
from tests.chaos.link import corrupted, doubled, dropped
from tests.end_to_end.chaos.stage import hear_slowly, kinds_of_requests

PROMPTS = (b"the quick brown fox", b"five boxing wizards")
MAX_TOKENS = 120
# Two deaths with fewer tokens between them make a request suspect of having caused them.
ENOUGH_TOKENS = 16
# Per second: faults that are over at once hit everybody more often than a backend's own budget bears.
ENOUGH_RETRIES = 10_000.0
PATIENCE_SECONDS = 120.0
LINK_FAULTS = ("cut", "reset", "half_close", "drop", "double", "corrupt", "delay", "stall")
FAULTS = ("kill", "freeze", "drain", "rotate", *LINK_FAULTS)


def requests() -> list[pb.PreprocessedRequest]:
    """One of each kind."""
    return [request for prompt in PROMPTS for request in kinds_of_requests(prompt, MAX_TOKENS)]


class World:
    """A fleet of engines, a backend in front of it, and everybody who has asked something."""

    def __init__(self, engines: Sequence[Engine], certificates: Certificates, backend: Backend) -> None:
        self.engines = engines
        self.certificates = certificates
        self.backend = backend
        self.truth: list[Truth] = []
        self.records: list[Record] = []
        self.faults: Counter[str] = Counter()
        self._requests = requests()
        self._live: list[Record] = []

    async def learn(self) -> None:
        """What each kind of request is answered while nothing is wrong."""
        for endpoint in self.backend.engines.all:
            await endpoint.client.wait_ready(PATIENCE_SECONDS)
        all_heard = await asyncio.gather(*(hear(self.backend, request) for request in self._requests))
        self.truth = [Truth.of(heard) for heard in all_heard]

    @property
    def num_kinds(self) -> int:
        """How many kinds of requests there are."""
        return len(self.truth)

    @property
    def live(self) -> list[Record]:
        """Requests that have not ended, the oldest first."""
        for record in self._live:
            if record.task.done():
                self.judge(record)
        self._live = [record for record in self._live if not record.task.done()]
        return list(self._live)

    def judge(self, record: Record) -> str:
        """What is wrong with a request that has ended: one of the faults of streams, or nothing."""
        return record.judge(self.truth[record.kind])

    def ask(self, kind: int) -> Record:
        """Begin a request of that kind."""
        heard = Heard()
        task = asyncio.create_task(hear_slowly(self.backend, self._requests[kind], heard))
        self.records.append(Record(kind, heard, task))
        self._live.append(self.records[-1])
        return self.records[-1]

    async def talk(self, count: int) -> None:
        """Return when at least so many requests live, and each of them has heard something."""
        for kind in range(count - len(self.live)):
            self.ask(kind % self.num_kinds)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_SECONDS):
                while not all(map(_num_tokens, self.live)):  # noqa: ASYNC110  # there is no event to await
                    await asyncio.sleep(0.005)

    @property
    def num_migrations(self) -> int:
        """How often an answer went on at another engine."""
        return sum(item.event == "migrated" for record in self.records for item in record.heard.items)

    async def leave(self, record: Record) -> None:
        """Its caller goes away, unless it has heard everything."""
        if not record.task.done():
            record.was_left = True
            record.task.cancel()
            await asyncio.wait([record.task])

    async def all_have_ended(self) -> None:
        """Return when every request has; one that never does is heard to have no end."""
        if live := self.live:
            await asyncio.wait([record.task for record in live], timeout=PATIENCE_SECONDS)
        for record in self.live:
            await self.leave(record)
            record.was_left = False
            self.judge(record)

    async def strike(self, fault: str, engine: Engine, dice: random.Random) -> None:
        """One fault from its beginning to its end; who was hit has got on when it is over."""
        self.faults[fault] += 1
        hit = self.live
        if fault in ("kill", "drain"):
            code = await engine.end(signal.SIGKILL if fault == "kill" else signal.SIGTERM)
            assert code == (-signal.SIGKILL if fault == "kill" else 0), f"{fault}: exit code {code}"
            await engine.start()
        elif fault == "freeze":
            engine.signal(signal.SIGSTOP)
            await self._have_got_on(hit)
            engine.signal(signal.SIGCONT)
        elif fault == "rotate":
            self.certificates.rotate()
        else:
            self.begin(fault, engine, dice)
        await self._have_got_on(hit)
        engine.link.heal()

    def begin(self, fault: str, engine: Engine, dice: random.Random) -> None:
        """A fault of the link, one of LINK_FAULTS."""
        link = engine.link
        match fault:
            case "cut":
                link.cut_after(dice.randrange(4000))
            case "reset":
                link.reset()
            case "half_close":
                link.half_close()
            case "stall":
                link.stall()
            case "delay":
                link.delay_seconds = dice.random() * 0.05
            case _:
                link.change_next({"drop": dropped, "double": doubled, "corrupt": corrupted(dice)}[fault])

    async def _have_got_on(self, records: Sequence[Record]) -> None:
        """Return when each has so many more tokens that it is not suspect, or has ended."""
        before = {id(record): _num_tokens(record) for record in records}
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_SECONDS):
                while any(  # noqa: ASYNC110  # there is no event to await
                    _num_tokens(record) < before[id(record)] + ENOUGH_TOKENS
                    for record in self.live
                    if id(record) in before
                ):
                    await asyncio.sleep(0.005)

    async def is_idle(self) -> bool:
        """True once nothing of any request is left in any engine."""
        for endpoint in self.backend.engines.all:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await endpoint.client.wait_ready(PATIENCE_SECONDS)
                while _is_busy(await endpoint.client.load(PATIENCE_SECONDS)):  # noqa: ASYNC110  # another process
                    await asyncio.sleep(0.01)
        return True

    def verdict(self) -> dict[str, int]:
        """What `make chaos` prints."""
        return {"kills": self.faults["kill"], **tally(self.records)}


def _num_tokens(record: Record) -> int:
    return sum(len(output.token_ids) for output in record.heard.outputs)


def _is_busy(load: pb.Load) -> bool:
    return (load.running, load.waiting, load.kv_blocks_used) != (0, 0, 0)


@contextlib.asynccontextmanager
async def world(folder: Path, num_engines: int, *, multiplexed: bool = True) -> AsyncIterator[World]:
    """Everything on TLS, every engine ready, nothing wrong yet."""
    vocabulary = Vocabulary(Tokenizer.from_str(byte_tokenizer().files["tokenizer.json"].decode()))
    certificates = Certificates(folder)
    arguments = (*MOCKER, "--log-format", "json", *certificates.options)
    async with fleet(folder, num_engines, arguments) as engines:
        clients = [
            EngineClient(engine.link.target, multiplexed=multiplexed, trust=certificates.trust)
            for engine in engines
        ]
        async with Endpoints(clients) as endpoints:
            # How often one tries is not what is tried here: some schedules hit a request again and again.
            policy = RetryPolicy(max_attempts=100, recovery=PATIENCE_SECONDS)
            backend = Backend(endpoints, vocabulary, retry=policy)
            backend.retry_budget = RetryBudget(per_second=ENOUGH_RETRIES)
            made = World(engines, certificates, backend)
            await made.learn()
            yield made
            await made.all_have_ended()
