"""Real processes for tests: the programs of the project, and what is left of them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import grpc
import psutil

from enginewire import v1 as pb
from tests.patience import PATIENCE_SECONDS


def command(*arguments: str) -> list[str]:
    """`enginewire-backend ARGUMENTS`."""
    return [sys.executable, "-m", "enginewire.backend", *arguments]


def run(*arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
    """`enginewire-backend ARGUMENTS` to its end, `given` on its standard input."""
    return subprocess.run(
        command(*arguments), input=given, capture_output=True, encoding="utf-8", timeout=PATIENCE_SECONDS
    )


@contextlib.contextmanager
def running(argv: list[str], **pipes: object) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is killed at the end of the context, unless it ended before."""
    process = subprocess.Popen(argv, **pipes)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


def until(condition: Callable[[], bool], within: float = PATIENCE_SECONDS) -> None:
    """Wait for something without an event of its own."""
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def load_of(target: str) -> pb.Load:
    """GetLoad, once the engine at `target` answers."""
    with grpc.insecure_channel(target, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        stub = pb.DiscoveryServiceStub(channel)
        return stub.GetLoad(pb.GetLoadRequest(), wait_for_ready=True, timeout=PATIENCE_SECONDS).load


def is_idle(target: str) -> bool:
    """True when nothing of any request is left in the engine."""
    load = load_of(target)
    return (load.running, load.waiting, load.kv_blocks_used) == (0, 0, 0)


def is_alive(pid: int) -> bool:
    """False for a process that has ended, collected by its parent or not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def children_of(pid: int) -> list[int]:
    """The engine servers and backends that a process of ours has started."""
    return [child.pid for child in psutil.Process(pid).children(recursive=True)]


def kill(pid: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Send a signal to a process that a test started."""
    os.kill(pid, number)
