"""Signals at random instants of a program's life, and what is left of it: `make test-long` has a few.

    python -m tests.chaos.instants [engine|backend] [--count 300] [--seed 1]

A program is met by SIGTERM or Ctrl-C while it starts, waits for its engine, is idle, serves callers of
every face, or drains; some are met twice. What its life is depends on the seed, the moment on the machine
as well. Counted are exit codes and how calls ended. Findings are exit codes that do not fit, a socket,
folder or process that is left, tracebacks, calls without an end, and answers that began before a first
signal and did not end whole although there was time. The last line is JSON, and the exit code is 1 if
there is a finding.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil

from tests.chaos import callers
from tests.chaos.callers import CUT, WHOLE, Caller, Diary

AT_ONCE: Final = 6
# Longer than any drain of these lives, and the answers in it, may take on a busy machine.
PATIENCE_SECONDS: Final = 60.0
# Two steps of a second each, and as many signals: see enginewire.backend.processes.stop_signals.
HASTE_SECONDS, MOST_STEPS = 1.9, 3
LONG_DRAIN, SHORT_DRAIN = 30.0, 0.3
MOCKER: Final = ("--engine", "mocker", "--mocker-itl-ms", "10", "--max-num-seqs", "128")
QUIET: Final = ("--log-level", "error")
SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
MARK: Final = "ENGINEWIRE_TEST_INSTANT"
NEVER_SAID: Final = (
    "Traceback",
    "Exception ignored",
    "Exception not handled",
    "destroyed but it is pending",
    "never awaited",
    "never retrieved",
    "Fatal Python error",
)


@dataclass
class Life:
    """One program, from its start to what it leaves: what was drawn for it, and what was seen of it."""

    argv: Sequence[str]
    folder: Path
    drain: float
    asking: Sequence[tuple[int, Caller]]
    """Callers, and the number of the address that they call, of those that the program says it listens on."""
    num_addresses: int
    has_engine: bool = True
    diary: Diary = field(default_factory=Diary)
    said: bytearray = field(default_factory=bytearray)
    addresses: list[str] = field(default_factory=list)
    signals: list[tuple[float, signal.Signals, bool]] = field(default_factory=list)
    """When it was sent, in seconds of time.monotonic; which; whether the program served by then."""
    code: int = 0
    ended: float = 0.0

    @property
    def serves(self) -> bool:
        """It has said where it listens, on all its faces."""
        return len(self.addresses) == self.num_addresses

    def findings(self) -> list[str]:
        """Everything that should not be."""
        if not self.signals:
            return [f"exit {self.code} by itself"]
        if self._is_pythons_own():
            return []
        found = [] if self.code in self._right_codes() else [f"exit {self.code} after {self._told()}"]
        if not self._was_hurried():
            left = [path.name for path in self.folder.iterdir() if not path.name.endswith(".lock")]
            found += [f"left {name} by exit {self.code} after {self._told()}" for name in left]
        said = self.said.decode(errors="replace")
        found += [f"said {words!r} after {self._told()}" for words in NEVER_SAID if words in said]
        found += ["a call without an end"] * sum(not call.end for call in self.diary.calls)
        if len(self.signals) == 1:
            found += ["an answer that was cut"] * sum(call.end == CUT for call in self.diary.calls)
        found += ["an answer that was not waited for"] * self._num_lost()
        return found

    def _is_pythons_own(self) -> bool:
        """Ctrl-C before `main` is called, or before Python knows what to run."""
        if signal.SIGINT not in [number for _, number, served in self.signals if not served]:
            return False
        has_ours = re.search(rb'^  File ".*/enginewire/', self.said, re.MULTILINE)
        # A second signal may meet Python while it says that it ends of the first.
        is_first_said = self.said.startswith((b"Traceback", b"Could not import runpy module"))
        was_ended = self.code == -signal.SIGTERM and is_first_said
        return self.code == -signal.SIGINT or (not has_ours and (was_ended or self.code == 1))

    def _was_hurried(self) -> bool:
        """It was told again and again, or had no time left: the next one takes its socket over."""
        took = self.ended - self.signals[-1][0]
        return len(self.signals) > MOST_STEPS or (len(self.signals) > 1 and took > HASTE_SECONDS)

    def _right_codes(self) -> set[int]:
        (_, first, served), *others = self.signals
        codes = {0} if served else {0, 128 + first, -first}
        if others:
            # Of two that come at once either may be the second.
            codes.add(128 + first)
        for _, number, _ in others:
            # Behind the end of the program's own code the signal's own action is the same to a shell.
            codes |= {128 + number, -number}
        return codes

    def _num_lost(self) -> int:
        """Answers that began in time, of a program that was told once and had enough time for them."""
        when, _, served = self.signals[0]
        if len(self.signals) > 1 or self.drain < LONG_DRAIN or not served:
            return 0
        ends_by_itself = [
            call for call in self.diary.calls if call.began and call.began < when and not call.is_endless
        ]
        return sum(call.end != WHOLE for call in ends_by_itself)

    def _told(self) -> str:
        return ", ".join(
            f"{number.name} {'serving' if served else 'starting'}" for _, number, served in self.signals
        )


def engine_life(draw: random.Random, folder: Path, target: str) -> Life:
    """An engine server on its socket."""
    drain = draw.choice([SHORT_DRAIN, SHORT_DRAIN, LONG_DRAIN])
    argv = ["enginewire.server", *MOCKER, "--uds", f"{folder}/e", "--shutdown-timeout", str(drain)]
    asking = draw.choice(
        [[], [callers.ask_engine], [callers.multiplex], [callers.ask_engine, callers.watch_health]]
    )
    return Life(argv, folder, drain, [(0, each) for each in asking], 1)


def backend_life(draw: random.Random, folder: Path, target: str) -> Life:
    """A backend: on an engine that is there, away or its own, with some of its faces."""
    drain = draw.choice([SHORT_DRAIN, LONG_DRAIN])
    engine = draw.choices(["there", "away", "its own"], [7, 1, 2])[0]
    upstream = {
        "there": ["--target", target],
        "away": ["--target", f"unix:{folder}/nobody"],
        "its own": ["--launch", " ".join((*MOCKER, *QUIET))],
    }[engine]
    argv = [
        "enginewire.backend",
        "serve",
        *upstream,
        "--shutdown-timeout",
        str(drain),
        "--connect-timeout",
        "600",
    ]
    argv += draw.choice([["--uds", f"{folder}/b"], ["--port", "0"]])
    argv += draw.choice([[], ["--no-multiplexed"]]) + draw.choice([[], ["--health-port", "0"]])
    asking = [(0, callers.ask_backend), (0, callers.watch_health)]
    for option, caller in (("--http-port", callers.ask_http), ("--smg-port", callers.ask_smg)):
        if draw.random() < 0.6:
            argv += [option, "0"]
            asking.append((max(number for number, _ in asking) + 1, caller))
    num_addresses = asking[-1][0] + 1
    callers_of_it = draw.choice([[], asking, draw.sample(asking, 1)])
    return Life(argv, folder, drain, callers_of_it, num_addresses, has_engine=engine != "away")


PROGRAMS: Final = {"engine": engine_life, "backend": backend_life}


async def live(life: Life, draw: random.Random) -> None:
    """All of it, into `life`."""
    environment = {
        **os.environ,
        MARK: life.folder.name,
        "TMPDIR": str(life.folder),
        "PYTHONFAULTHANDLER": "1",
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        *life.argv,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
        env=environment,
    )
    assert process.stderr is not None
    reading = asyncio.create_task(_read(life, process.stderr))
    asking = [asyncio.create_task(_call_when_there(life, number, caller)) for number, caller in life.asking]
    await _strike(life, draw, process)
    try:
        life.code = await asyncio.wait_for(process.wait(), PATIENCE_SECONDS)
    except TimeoutError:
        # It says where it is.
        process.send_signal(signal.SIGABRT)
        life.code = await process.wait()
    life.ended = time.monotonic()
    life.diary.is_closed = True
    if asking:
        _, without_end = await asyncio.wait(asking, timeout=PATIENCE_SECONDS)
        for task in without_end:
            task.cancel()
    # Whoever holds its output is a process that it has left.
    await asyncio.wait([reading], timeout=5)
    reading.cancel()


async def _strike(life: Life, draw: random.Random, process: asyncio.subprocess.Process) -> None:
    """The signals. Three of four programs are met while they serve, or wait for an engine."""
    if draw.random() < 0.75:
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_SECONDS if life.has_engine else draw.random() * 4):
                while not life.serves and process.returncode is None:  # noqa: ASYNC110  # it says so to another task
                    await asyncio.sleep(0.01)
    await asyncio.sleep(draw.random())
    _send(life, draw, process)
    while draw.random() < 0.35:
        # Many ends take less than a tenth of a second: the second one shall meet some of them.
        await asyncio.sleep(draw.choice([0.01, 0.1, 1]) * draw.random())
        _send(life, draw, process)


def _send(life: Life, draw: random.Random, process: asyncio.subprocess.Process) -> None:
    number, served = draw.choices(SIGNALS, [2, 1])[0], life.serves
    send = os.killpg if draw.random() < 0.3 else os.kill  # as a terminal does it, or a kubelet
    if process.returncode is None:
        with suppress(ProcessLookupError):
            send(process.pid, number)
            life.signals.append((time.monotonic(), number, served))


async def _read(life: Life, output: asyncio.StreamReader) -> None:
    async for line in output:
        life.said += line
        if b"listening on" in line and not life.serves:
            life.addresses.append(line.decode().partition("listening on ")[2].split('"')[0].strip())


async def _call_when_there(life: Life, number: int, caller: Caller) -> None:
    while len(life.addresses) <= number:
        if life.diary.is_closed:
            return
        await asyncio.sleep(0.01)
    await caller(life.addresses[number], life.diary)


def processes_of(folder: str) -> list[int]:
    """Whatever still runs of a life: its program's children have its environment."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(MARK) == folder and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
    return found


async def try_one(program: str, seed: int, target: str) -> Counter[str]:
    """What there is to count of one life; its findings begin with `! `."""
    draw = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="ew-") as name:
        life = PROGRAMS[program](draw, Path(name), target)
        await live(life, draw)
        findings = life.findings()
        if processes_of(life.folder.name):
            # The kernel kills the child of a program that is gone, in its time.
            await asyncio.sleep(2)
            findings += ["a process that is left"] * bool(processes_of(life.folder.name))
        if findings:
            print(
                f"{seed}: {' '.join(life.argv)}: {findings}\n{life.said.decode(errors='replace')}",
                file=sys.stderr,
            )
    ends = {f"calls {end}": count for end, count in life.diary.ends().items()}
    return Counter({f"exit {life.code}": 1, **ends}) + Counter(f"! {each}" for each in findings)


@asynccontextmanager
async def engine() -> AsyncIterator[str]:
    """Where an engine server listens that backends may share."""
    with tempfile.TemporaryDirectory(prefix="ew-") as folder:
        argv = ["-m", "enginewire.server", *MOCKER, *QUIET, "--uds", f"{folder}/e"]
        process = await asyncio.create_subprocess_exec(sys.executable, *argv)
        try:
            async with callers.channel(f"unix:{folder}/e") as to:
                await asyncio.wait_for(to.channel_ready(), PATIENCE_SECONDS)
            yield f"unix:{folder}/e"
        finally:
            process.terminate()
            await process.wait()


async def run(program: str, count: int, seed: int) -> dict[str, object]:
    """What was counted, and every kind of finding."""
    seen, places = Counter[str](), asyncio.Semaphore(AT_ONCE)

    async def one(number: int, target: str) -> None:
        async with places:
            seen.update(await try_one(program, seed * 100_003 + number, target))

    async with engine() as target:
        await asyncio.gather(*(one(number, target) for number in range(count)))
    findings = {name.removeprefix("! "): seen.pop(name) for name in [*seen] if name.startswith("! ")}
    return {"instants": count, **dict(seen.most_common()), "findings": findings}


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("program", choices=PROGRAMS, nargs="?", default="backend")
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    # A shell lets those that it starts aside ignore Ctrl-C, and these programs would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    found = asyncio.run(run(options.program, options.count, options.seed))
    print(json.dumps(found))
    return int(bool(found["findings"]))


if __name__ == "__main__":
    sys.exit(main())
