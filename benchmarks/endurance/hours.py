"""Hours of callers and a fault every half minute: what gets slower meanwhile, and what grows.

    python benchmarks/endurance/hours.py [--seconds 3600] [--every 30] [--seed 1]

Three mocker engines behind one backend process, and callers of its HTTP and gRPC faces who ask one thing
after the other; one in ten leaves. By turns one of two engines is killed, drained or frozen for a while. The
third engine and the backend live through all of it. Every answer has to be the one that the same question had
before the first fault. Prints a line for each tenth of the time: answers, ms to the first piece and between
two pieces where no fault was (p50 and p99), the longest wait of all, MiB, descriptors and threads of the
backend and of the third engine. The last line is JSON; the exit code is 1 if an answer was lost or changed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import random
import re
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import httpx2
import psutil

from enginewire import v1 as pb

QUESTIONS = tuple(f"{word} and so on, " * 8 for word in ("one", "two", "three", "four"))
NUM_TOKENS, NUM_CALLERS, SHARE_OF_LEAVERS = 100, 12, 0.1
FAULTS = ("kill", "drain", "freeze")
FREEZE_SECONDS, CALMING_SECONDS, START_SECONDS, ANSWER_SECONDS = 3.0, 2.0, 60.0, 60.0
MOCKER = ("--engine", "mocker", "--mocker-itl-ms", "10", "--log-level", "error")


@dataclass
class Tenth:
    """What was seen in a tenth of the time; seconds.

    `firsts` and `gaps` are of answers that met no fault, `worst` of all answers.
    """

    firsts: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    worst: float = 0.0
    ends: Counter[str] = field(default_factory=Counter)

    def add(self, waits: Sequence[float], met_a_fault: bool) -> None:
        """The times before each piece of an answer."""
        self.worst = max((self.worst, *waits))
        if waits and not met_a_fault:
            self.firsts.append(waits[0])
            self.gaps += waits[1:]

    def as_row(self) -> dict[str, float]:
        """Times in ms."""
        row: dict[str, float] = {"answers": self.ends.total()}
        for name, seconds in (("first", self.firsts), ("gap", self.gaps)):
            parts = statistics.quantiles(seconds, n=100)
            for percent in (50, 99):
                row[f"{name}_p{percent}_ms"] = round(parts[percent - 1] * 1000, 2)
        return {**row, "worst_ms": round(self.worst * 1000)}


class Slot:
    """A socket on which one engine process follows the other."""

    def __init__(self, socket: Path) -> None:
        self.target = f"unix:{socket}"
        self._argv = ("-m", "enginewire.server", *MOCKER, "--uds", str(socket))

    async def start(self) -> None:
        """Return when it is ready."""
        self.process = await asyncio.create_subprocess_exec(sys.executable, *self._argv)
        async with grpc.aio.insecure_channel(
            self.target, options=[("grpc.use_local_subchannel_pool", 1)]
        ) as to:
            stub = pb.DiscoveryServiceStub(to)
            await stub.GetLoad(pb.GetLoadRequest(), wait_for_ready=True, timeout=START_SECONDS)

    async def strike(self, fault: str) -> None:
        """One fault from its beginning to its end."""
        if fault == "freeze":
            self.process.send_signal(signal.SIGSTOP)
            await asyncio.sleep(FREEZE_SECONDS)
            self.process.send_signal(signal.SIGCONT)
            return
        self.process.send_signal(signal.SIGKILL if fault == "kill" else signal.SIGTERM)
        await self.process.wait()
        await self.start()

    async def end(self) -> None:
        """Killed, if it lives."""
        if self.process.returncode is None:
            self.process.kill()
            await self.process.wait()


@contextlib.asynccontextmanager
async def backend(folder: Path, targets: list[str]) -> AsyncIterator[tuple[str, str, psutil.Process]]:
    """Its HTTP address, its gRPC target and its process."""
    socket = folder / "backend"
    argv = [*(f"--target={each}" for each in targets), f"--uds={socket}", "--http-port=0"]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "enginewire.backend", "serve", *argv), stderr=asyncio.subprocess.PIPE
    )
    assert process.stderr is not None
    try:
        while not (found := re.search(r"http://\S+", line := (await process.stderr.readline()).decode())):
            assert line, "no backend"
        reading = asyncio.create_task(process.stderr.read())
        yield found[0], f"unix:{socket}", psutil.Process(process.pid)
        process.terminate()
        await asyncio.gather(process.wait(), reading)
    finally:
        if process.returncode is None:
            process.kill()


async def over_http(address: str, client: httpx2.AsyncClient, question: str) -> AsyncGenerator[str]:
    """The pieces of an answer, as a stream of events."""
    body = {
        "prompt": question,
        "max_tokens": NUM_TOKENS,
        "ignore_eos": True,
        "stream": True,
        "temperature": 0,
    }
    async with client.stream("POST", f"{address}/v1/completions", json=body) as answer:
        answer.raise_for_status()
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                yield json.loads(line.removeprefix("data: "))["choices"][0]["text"]


async def over_grpc(stub: pb.BackendServiceStub, question: str) -> AsyncGenerator[str]:
    """The same from BackendService."""
    request = pb.BackendServiceGenerateRequest(text=question)
    request.request.stop_conditions.max_tokens, request.request.stop_conditions.ignore_eos = NUM_TOKENS, True
    async for message in stub.Generate(request):
        yield message.annotated.data.text


class Soak:
    """Callers, what they heard, and what it should have been."""

    def __init__(self, address: str, client: httpx2.AsyncClient, stub: pb.BackendServiceStub) -> None:
        self._address, self._client, self._stub = address, client, stub
        self._truth: dict[str, str] = {}
        self.tenth = Tenth()
        self.faults: Counter[str] = Counter()
        self.is_hit = False
        self.examples: list[str] = []

    def _ask(self, question: str, by_http: bool) -> AsyncGenerator[str]:
        if by_http:
            return over_http(self._address, self._client, question)
        return over_grpc(self._stub, question)

    async def learn(self) -> None:
        """What is answered while nothing is wrong."""
        for question in QUESTIONS:
            heard = [[piece async for piece in self._ask(question, by_http)] for by_http in (True, False)]
            self._truth[question], other = map("".join, heard)
            assert self._truth[question] == other, "both faces say the same"

    async def keep_asking(self, dice: random.Random) -> None:
        """One caller, until it is cancelled."""
        while True:
            question, by_http = dice.choice(QUESTIONS), dice.random() < 0.5
            patience = dice.random() if dice.random() < SHARE_OF_LEAVERS else ANSWER_SECONDS
            text, end = "", ""
            try:
                async with asyncio.timeout(patience):
                    text = await self._hear(self._ask(question, by_http))
            except TimeoutError:
                end = "lost" if patience == ANSWER_SECONDS else "left"
            # What is no choice is the error that ends a stream of events.
            except (httpx2.HTTPError, grpc.aio.AioRpcError, KeyError) as error:
                end = "lost"
                self.examples.append(repr(error)[:300])
            self.tenth.ends[end or ("whole" if text == self._truth[question] else "changed")] += 1

    async def _hear(self, pieces: AsyncGenerator[str]) -> str:
        text, waits, last, before = "", [], time.perf_counter(), self.faults.copy()
        met_a_fault = self.is_hit
        async with contextlib.aclosing(pieces):
            async for piece in pieces:
                now = time.perf_counter()
                waits.append(now - last)
                text, last = text + piece, now
        self.tenth.add(waits, met_a_fault or before != self.faults)
        return text

    async def break_things(self, slots: list[Slot], every: float) -> None:
        """A fault every so many seconds, each kind at each engine by turns: each tenth has the same."""
        for number, fault in enumerate(itertools.cycle(FAULTS)):
            began = time.monotonic()
            self.faults[fault] += 1
            self.is_hit = True
            await slots[number // len(FAULTS) % len(slots)].strike(fault)
            await asyncio.sleep(CALMING_SECONDS)
            self.is_hit = False
            await asyncio.sleep(max(every - (time.monotonic() - began), 0))


def size(process: psutil.Process) -> dict[str, float]:
    """What a process holds."""
    return {
        "mib": round(process.memory_info().rss / (1 << 20), 2),
        "fds": process.num_fds(),
        "threads": process.num_threads(),
    }


async def run(options: argparse.Namespace) -> dict[str, object]:
    """What there is to say about all of it."""
    with tempfile.TemporaryDirectory(prefix="ew-") as name:
        async with contextlib.AsyncExitStack() as stack:
            slots = [Slot(Path(name) / f"e{number}") for number in range(3)]
            for slot in slots:
                await slot.start()
                stack.push_async_callback(slot.end)
            address, target, process = await stack.enter_async_context(
                backend(Path(name), [slot.target for slot in slots])
            )
            client = await stack.enter_async_context(httpx2.AsyncClient(timeout=None, trust_env=False))
            to = await stack.enter_async_context(grpc.aio.insecure_channel(target))
            soak = Soak(address, client, pb.BackendServiceStub(to))
            await soak.learn()
            return await live(options, soak, slots, process)


async def live(
    options: argparse.Namespace, soak: Soak, slots: list[Slot], process: psutil.Process
) -> dict[str, object]:
    """The time itself, tenth by tenth."""
    ends: Counter[str] = Counter()
    *broken, veteran = slots
    lasting = {"backend": process, "engine": psutil.Process(veteran.process.pid)}
    asking = [soak.keep_asking(random.Random(f"{options.seed} {number}")) for number in range(NUM_CALLERS)]
    rows: list[dict[str, float]] = []
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(each) for each in (*asking, soak.break_things(broken, options.every))]
        for _ in range(10):
            await asyncio.sleep(options.seconds / 10)
            rows.append(soak.tenth.as_row())
            for who, each in lasting.items():
                rows[-1] |= {f"{who}_{what}": value for what, value in size(each).items()}
            ends += soak.tenth.ends
            soak.tenth = Tenth()
            print(json.dumps(rows[-1]), flush=True)
        for task in tasks:
            task.cancel()
    return {
        **{kind: ends[kind] for kind in ("whole", "left", "lost", "changed")},
        "faults": dict(soak.faults),
        "examples": soak.examples[:5],
        **drift(rows, options.seconds),
    }


def drift(rows: list[dict[str, float]], seconds: float) -> dict[str, float]:
    """The last tenth against the first; memory from the second tenth on, when all of it is warm."""
    hours = seconds / 3600 * 0.8
    ratios = {
        f"ratio_{name}": round(rows[-1][f"{name}_ms"] / rows[0][f"{name}_ms"], 3)
        for name in ("first_p50", "first_p99", "gap_p50", "gap_p99")
    }
    slopes = {
        f"{who}_mib_per_hour": round((rows[-1][f"{who}_mib"] - rows[1][f"{who}_mib"]) / hours, 2)
        for who in ("backend", "engine")
    }
    return {**ratios, **slopes}


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--every", type=float, default=30.0, help="seconds from one fault to the next")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if options.every < 10:
        parser.error("--every: a fault and what it leaves behind take up to 10 seconds")
    if options.seconds < 20 * options.every:
        parser.error("--seconds: a tenth of them must be twice --every at least")
    found = asyncio.run(run(options))
    print(json.dumps(found))
    return int(bool(found["lost"] or found["changed"]))


if __name__ == "__main__":
    sys.exit(main())
