"""Backends, engines and callers in networks of their own, and answers over a cable that goes bad.

    python -m tests.chaos.rehearsal [--only pulled]

It gives itself a private network in which it may do everything, as root or where the kernel lets users
have one (`unshare --net`), and says so where it cannot. A backend has two engines, each behind a cable
(`cable.py`), and eight callers. For each fault of the cable to the first engine: how many answers went on
at the other one, how long callers waited for their next token at most, and whether all answers are those
of engines that nobody disturbed. Then the same without replay, and callers who vanish. The last line is
JSON; the exit code is 1 when an answer was lost or changed, or nothing was noticed within a minute.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import grpc

from enginewire import v1 as pb
from enginewire.backend.decoding.annotated import Failure
from tests.chaos.callers import asked, channel
from tests.chaos.rehearsal.cable import Cable
from tests.end_to_end.chaos import kinds_of_requests

PATIENCE_SECONDS: Final = 60.0
NUM_TOKENS: Final = 400
ENGINE_PORT, GRPC_PORT, HTTP_PORT = 50051, 50052, 8000
MOCKER: Final = ("--engine", "mocker", "--mocker-itl-ms", "20", "--max-model-len", "200000")
OPEN: Final = ("--allow-insecure", "--log-level", "error")
PRIVATE: Final = 'mount -t tmpfs none /run && ip link set lo up && exec "$@"'
BLINK_SECONDS: Final = 2.0


@dataclass
class Answer:
    """What one caller got, and when each piece came, in seconds of time.monotonic."""

    tokens: dict[int, list[int]] = field(default_factory=dict)
    text: dict[int, str] = field(default_factory=dict)
    finishes: dict[int, int] = field(default_factory=dict)
    is_gapless: bool = True
    num_migrations: int = 0
    error: pb.Status | None = None
    times: list[float] = field(default_factory=list)

    def take(self, item: pb.Annotated) -> None:
        """The next one."""
        self.num_migrations += item.event == "migrated"
        if item.HasField("error"):
            self.error = item.error
        if not item.HasField("data"):
            return
        data, tokens = item.data, self.tokens.setdefault(item.data.index, [])
        self.is_gapless &= not data.token_ids or data.first_output_position == len(tokens)
        tokens.extend(data.token_ids)
        self.text[data.index] = self.text.get(data.index, "") + data.text
        if data.finish_reason:
            self.finishes[data.index] = data.finish_reason
        self.times.append(time.monotonic())

    def said(self) -> tuple[object, ...]:
        """What must not depend on any cable."""
        return self.tokens, self.text, self.finishes, self.is_gapless, self.error

    def longest_wait(self, since: float) -> float:
        """Seconds without a piece, of those that ended after `since`."""
        times = [since, *(each for each in self.times if each > since)]
        return max((after - before for before, after in itertools.pairwise(times)), default=0.0)


Fault = Callable[["Engines"], Awaitable[None]]


class Engines:
    """Two engine servers at the far ends of two cables. The first one is the one that things happen to."""

    def __init__(self, cables: Sequence[Cable]) -> None:
        self.cables = cables
        self.targets = [f"{cable.far}:{ENGINE_PORT}" for cable in cables]
        self._processes: list[asyncio.subprocess.Process | None] = [None, None]
        self._is_bad: asyncio.Task[None] | None = None

    async def start(self, number: int) -> None:
        """A new life of one of them."""
        cable = self.cables[number]
        argv = [sys.executable, "-m", "enginewire.server", *MOCKER, *OPEN]
        command = cable.at_the_far_end([*argv, "--host", cable.far, "--port", str(ENGINE_PORT)])
        self._processes[number] = await asyncio.create_subprocess_exec(*command)
        await load_of(self.targets[number])

    async def kill(self, number: int) -> None:
        """It ends where it is."""
        process = self._processes[number]
        if process is not None and process.returncode is None:
            process.kill()
            await process.wait()

    async def lose_power(self) -> None:
        """The first one's machine: nobody says goodbye, and what comes back knows of no connection."""
        self.cables[0].pull()
        await self.kill(0)
        self.cables[0].__exit__(None, None, None)
        await asyncio.sleep(BLINK_SECONDS)
        self.cables[0].__enter__()
        await self.start(0)

    async def blink(self) -> None:
        """Silence that is shorter than what anybody should notice."""
        self.cables[0].silence()
        await asyncio.sleep(BLINK_SECONDS)
        self.cables[0].heal()

    async def lose_bursts(self) -> None:
        """From now on, until `heal`."""
        self._is_bad = asyncio.create_task(self.cables[0].be_bad())

    async def heal(self) -> None:
        """As it was."""
        if self._is_bad is not None:
            self._is_bad.cancel()
            await asyncio.gather(self._is_bad, return_exceptions=True)
            self._is_bad = None
        self.cables[0].heal()


def at_once(strike: Callable[[Cable], None]) -> Fault:
    """What takes no time."""

    async def fault(engines: Engines) -> None:
        strike(engines.cables[0])

    return fault


FAULTS: Final[dict[str, Fault]] = {
    "pulled": at_once(Cable.pull),
    "pulled at the engine": at_once(Cable.pull_far),
    "silent": at_once(Cable.silence),
    "silent from the engine": at_once(Cable.silence_far),
    "silent to the engine": at_once(Cable.silence_near),
    "power lost": Engines.lose_power,
    "blinks for 2 s": Engines.blink,
    "loses a third in bursts": Engines.lose_bursts,
    "narrow, 128 kbit/s": at_once(partial(Cable.narrow, kilobits=128)),
}


async def load_of(target: str) -> pb.Load:
    """GetLoad, once the engine there answers."""
    async with channel(target) as to:
        stub = pb.DiscoveryServiceStub(to)
        return (await stub.GetLoad(pb.GetLoadRequest(), wait_for_ready=True, timeout=PATIENCE_SECONDS)).load


async def is_free(target: str) -> bool:
    """Nothing runs there."""
    return not (await load_of(target)).running


async def until(is_due: Callable[[], Awaitable[bool]], seconds: float = PATIENCE_SECONDS) -> bool:
    """True once it is; False after so long."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while not await is_due():  # noqa: ASYNC110  # other processes
                await asyncio.sleep(0.05)
            return True
    return False


@asynccontextmanager
async def process(*argv: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """`python -m ARGV`, killed at the end."""
    running = await asyncio.create_subprocess_exec(
        sys.executable, "-m", *argv, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        yield running
    finally:
        with suppress(ProcessLookupError):
            running.kill()
        await running.wait()


@asynccontextmanager
async def backend(folder: Path, *options: str) -> AsyncIterator[str]:
    """Where a backend process serves gRPC, once it does."""
    at = folder / f"b{time.monotonic_ns()}"
    argv = ("enginewire.backend", "serve", "--uds", str(at), "--connect-timeout", "600", *options)
    async with process(*argv, *OPEN), channel(f"unix:{at}") as to:
        await asyncio.wait_for(to.channel_ready(), PATIENCE_SECONDS)
        yield f"unix:{at}"


async def ask(to: grpc.aio.Channel, request: pb.PreprocessedRequest, answer: Answer) -> Answer:
    """All of it, into `answer` as it comes."""
    call = pb.BackendServiceStub(to).Generate(
        pb.BackendServiceGenerateRequest(token_ids=True, request=request)
    )
    async for response in call:
        answer.take(response.annotated)
    return answer


def requests(num_tokens: int = NUM_TOKENS) -> list[pb.PreprocessedRequest]:
    """Those of the eight callers."""
    return list(kinds_of_requests(b"over a cable", num_tokens))


async def ask_all(to: grpc.aio.Channel, answers: Sequence[Answer]) -> asyncio.Future[list[Answer]]:
    """Return once every caller has something."""
    asking = asyncio.gather(*(ask(to, *each) for each in zip(requests(), answers, strict=True)))

    async def all_have_begun() -> bool:
        return all(answer.times for answer in answers)

    assert await until(all_have_begun)
    return asking


async def is_used(to: grpc.aio.Channel, target: str) -> bool:
    """The backend sends requests there."""
    before = (await load_of(target)).requests_finished
    await asyncio.gather(*(ask(to, request, Answer()) for request in requests(4)))
    return (await load_of(target)).requests_finished > before


async def tried(
    engines: Engines, to: grpc.aio.Channel, fault: str, truth: Sequence[Answer]
) -> dict[str, object]:
    """One fault, while everybody waits for tokens."""
    assert await until(partial(is_used, to, engines.targets[0]))
    answers = [Answer() for _ in truth]
    asking = await ask_all(to, answers)
    assert (await load_of(engines.targets[0])).running
    struck = time.monotonic()
    await FAULTS[fault](engines)
    with suppress(TimeoutError):
        await asyncio.wait_for(asking, 2 * PATIENCE_SECONDS)
    await engines.heal()
    # What the engine still says of them is nobody's answer, and nothing of it stays.
    assert await until(partial(is_free, engines.targets[0]))
    return {
        "fault": fault,
        "migrated": sum(answer.num_migrations for answer in answers),
        "longest_wait_s": round(max(answer.longest_wait(struck) for answer in answers), 1),
        "wrong": sum(answer.said() != right.said() for answer, right in zip(answers, truth, strict=True)),
    }


async def with_replay(engines: Engines, folder: Path, faults: Sequence[str]) -> list[dict[str, object]]:
    """Every fault, one after the other, with one backend."""
    targets = [f"--target={target}" for target in engines.targets]
    async with backend(folder, *targets) as at, channel(at) as to:
        truth = [Answer() for _ in requests()]
        await (await ask_all(to, truth))
        rows = []
        for fault in faults:
            rows.append(await tried(engines, to, fault, truth))
            print(json.dumps(rows[-1]), flush=True)
        return rows


async def without_replay(engines: Engines, folder: Path, fault: str) -> dict[str, object]:
    """The only engine is lost: how long until every caller is told, and what."""
    async with backend(folder, "--no-replay", "--target", engines.targets[0]) as at, channel(at) as to:
        answers = [Answer() for _ in requests()]
        asking = await ask_all(to, answers)
        struck = time.monotonic()
        await FAULTS[fault](engines)
        with suppress(TimeoutError):
            await asyncio.wait_for(asking, PATIENCE_SECONDS)
        told = time.monotonic() - struck
        await engines.heal()
    reasons = {_reason(answer) for answer in answers}
    row = {
        "fault": f"{fault}, without replay",
        "told_after_s": round(told, 1),
        "reasons": sorted(reasons),
        "wrong": sum(_reason(answer) != "ENGINE_DEAD, retryable" for answer in answers),
    }
    print(json.dumps(row), flush=True)
    return row


def _reason(answer: Answer) -> str:
    if answer.error is None:
        return "none"
    failure = Failure.from_proto(answer.error)
    name = pb.ErrorReason.Name(failure.reason).removeprefix("ERROR_REASON_")
    return f"{name}, {'retryable' if failure.retryable else 'final'}"


CALLERS: Final = ("gRPC", "HTTP", "HTTP, not as a stream")


async def vanishing(cable: Cable, folder: Path, caller: str) -> dict[str, object]:
    """A pod with its engine behind a Unix socket, and a caller whose machine is gone: until that is seen."""
    engine = f"unix:{folder}/e"
    to_grpc = ("--host", cable.near, "--port", str(GRPC_PORT))
    to_http = ("--http-host", cable.near, "--http-port", str(HTTP_PORT))
    serve = ("enginewire.backend", "serve", "--target", engine, *to_grpc, *to_http, *OPEN)

    async def is_running() -> bool:
        return not await is_free(engine)

    async with process("enginewire.server", *MOCKER, *OPEN, "--uds", f"{folder}/e"), process(*serve):
        argv = cable.at_the_far_end(
            [sys.executable, "-m", "tests.chaos.rehearsal", "--call", caller, cable.near]
        )
        calling = await asyncio.create_subprocess_exec(*argv)
        assert await until(is_running)
        cable.silence()
        struck = time.monotonic()
        was_noticed = await until(partial(is_free, engine), 2 * PATIENCE_SECONDS)
        row = {
            "fault": f"a caller over {caller} vanishes",
            "freed_after_s": round(time.monotonic() - struck, 1),
            "wrong": int(not was_noticed),
        }
        calling.kill()
        await calling.wait()
        cable.heal()
    print(json.dumps(row), flush=True)
    return row


def call(caller: str, host: str) -> None:
    """What that caller is: it asks for more than anybody waits for, and reads on."""
    if caller == "gRPC":
        request = pb.BackendServiceGenerateRequest(token_ids=True, request=asked("", 100_000).request)
        with grpc.insecure_channel(f"{host}:{GRPC_PORT}") as to:
            for _ in pb.BackendServiceStub(to).Generate(request, wait_for_ready=True):
                pass
    body = json.dumps(
        {"prompt": "x", "max_tokens": 100_000, "ignore_eos": True, "stream": caller == "HTTP"}
    ).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    while True:
        with suppress(ConnectionRefusedError), socket.create_connection((host, HTTP_PORT)) as to:
            to.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            while to.recv(4096):
                pass
        time.sleep(0.1)


async def rehearse(only: str | None) -> list[dict[str, object]]:
    """All of it."""
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory(prefix="ew-") as name, ExitStack() as cables:
        folder = Path(name)
        engines = Engines([cables.enter_context(Cable(number)) for number in range(2)])
        to_caller = cables.enter_context(Cable(2))
        async with AsyncExitStack() as stack:
            for number in range(2):
                stack.push_async_callback(engines.kill, number)
                await engines.start(number)
            faults = [fault for fault in FAULTS if only in (None, fault)]
            if faults:
                rows += await with_replay(engines, folder, faults)
            for fault in ("pulled", "silent"):
                if only in (None, "replay"):
                    rows.append(await without_replay(engines, folder, fault))
        for caller in CALLERS:
            if only in (None, caller):
                rows.append(await vanishing(to_caller, folder, caller))
    return rows


def in_a_private_network(arguments: Sequence[str]) -> int | str:
    """The exit code of this program there, or why there is none."""
    if missing := [name for name in ("unshare", "ip", "tc") if shutil.which(name) is None]:
        return f"no {' and no '.join(missing)} here"
    own = ["unshare", "--net", "--mount", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"])]
    inside = [*own, "sh", "-c", PRIVATE, "sh"]
    try_out = subprocess.run(
        [*inside, "ip", "netns", "add", "x"], capture_output=True, text=True, check=False
    )
    if try_out.returncode:
        return f"neither root nor a private network here: {try_out.stderr.strip()}"
    itself = [sys.executable, "-m", "tests.chaos.rehearsal", "--inside", *arguments]
    return subprocess.run([*inside, *itself], check=False).returncode


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=(*FAULTS, "replay", *CALLERS), help="nothing but this fault")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--call", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.call:
        call(*options.call)
    if not options.inside:
        code = in_a_private_network(sys.argv[1:])
        if isinstance(code, str):
            print(json.dumps({"skipped": code}))
            return 0
        return code
    rows = asyncio.run(rehearse(options.only))
    wrong = sum(int(str(row["wrong"])) for row in rows)
    print(json.dumps({"faults": len(rows), "wrong": wrong}))
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
