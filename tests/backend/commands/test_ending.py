"""How processes end while callers withhold what they owe and engines do not answer any more."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import subprocess
import sys
import tempfile
import termios
from collections.abc import Iterator
from pathlib import Path

import grpc
import orjson
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from enginewire import v1 as pb
from tests.backend.frontends.http_api.raw_http import head_of, posting
from tests.backend.our_processes import children_of, command, is_alive, is_idle, kill, load_of, running, until
from tests.long import long, long_but
from tests.patience import PATIENCE_SECONDS

# Far more than the end may take, and far less than for ever.
ASK = {"prompt": "x", "max_tokens": 60_000, "ignore_eos": True, "logprobs": 20, "stream": True}


@pytest.fixture
def engine(socket_folder: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A mocker in its own process, and its target."""
    path = socket_folder / "engine.sock"
    options = ["--engine", "mocker", "--uds", str(path), "--max-model-len", "100000"]
    argv = [sys.executable, "-m", "enginewire.server", *options]
    with running(argv, stderr=subprocess.DEVNULL) as process:
        until(path.exists)
        load_of(f"unix:{path}")
        yield f"unix:{path}", process
        process.send_signal(signal.SIGCONT)


class Served:
    """`enginewire-backend serve` with all its faces."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.grpc = self._address()
        host, _, port = self._address().removeprefix("http://").rpartition(":")
        self._http = (host, int(port))
        self.smg = self._address().removeprefix("grpc://")

    def _address(self) -> str:
        assert self.process.stderr is not None
        while not (line := self.process.stderr.readline().decode()).startswith("listening on"):
            assert line, "it ended"
        return line.split()[2]

    def caller(self, data: bytes) -> socket.socket:
        """Somebody who says that over HTTP and reads nothing."""
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(PATIENCE_SECONDS)
        connection.connect(self._http)
        connection.sendall(data)
        return connection

    def is_reached(self) -> bool:
        """True once everything that was sent before this has been looked at."""
        with self.caller(b"GET /version HTTP/1.1\r\nhost: localhost\r\n\r\n") as connection:
            return connection.recv(64).startswith(b"HTTP/1.1 200")


@contextlib.contextmanager
def serving(*options: str) -> Iterator[Served]:
    with tempfile.TemporaryDirectory(prefix="ew-") as folder:
        argv = command("serve", "--uds", f"{folder}/b", "--http-port", "0", "--smg-port", "0", *options)
        # Should it be killed, its own folder lies in this one.
        environment = {**os.environ, "TMPDIR": folder}
        with running(argv, stderr=subprocess.PIPE, env=environment) as process:
            yield Served(process)


@contextlib.contextmanager
def hostile_callers(served: Served) -> Iterator[list[socket.socket]]:
    """Of every face; the first one waits for its body's end."""
    get = b"GET /version HTTP/1.1\r\nhost: localhost\r\n\r\n"
    saying = [
        posting(b'{"prompt": ', length=1000),
        head_of(length=1000, path="/enginewire/abort"),
        get[:20],
        get,
        b"",
        b"GET /enginewire/events HTTP/1.1\r\nhost: localhost\r\n\r\n",
        posting(orjson.dumps(ASK)),
        posting(orjson.dumps({**ASK, "n": 2})),
        posting(orjson.dumps({**ASK, "stream": False})),
    ]
    with contextlib.ExitStack() as stack:
        callers = [stack.enter_context(served.caller(each)) for each in saying]
        channel = stack.enter_context(grpc.insecure_channel(served.grpc))
        worker = stack.enter_context(grpc.insecure_channel(served.smg))
        for each in (channel, worker):
            watch = health_pb2_grpc.HealthStub(each).Watch(health_pb2.HealthCheckRequest())
            next(watch)
        asked = pb.PreprocessedRequest(
            stop_conditions=pb.StopConditions(ignore_eos=True, max_tokens=60_000),
            output_options=pb.OutputOptions(logprobs=20),
        )
        # Nobody reads on: the writes of the server wait.
        call = pb.BackendServiceStub(channel).Generate(
            pb.BackendServiceGenerateRequest(text="x", request=asked), wait_for_ready=True
        )
        next(call)
        assert served.is_reached()
        yield callers
        call.cancel()


def test_no_caller_keeps_a_backend_alive(engine: tuple[str, subprocess.Popen[bytes]]) -> None:
    target, _ = engine
    with serving("--target", target, "--shutdown-timeout", "1") as served, hostile_callers(served) as callers:
        served.process.send_signal(signal.SIGTERM)
        # What has not come completely was not accepted, and may be sent to somebody else.
        assert callers[0].recv(64).startswith(b"HTTP/1.1 503")
        assert served.process.wait(PATIENCE_SECONDS) == 0
    until(lambda: is_idle(target))


@pytest.mark.parametrize("second", long_but([signal.SIGINT], [signal.SIGTERM, signal.SIGINT]))
def test_a_second_signal_ends_it_at_once_whatever_callers_do(
    engine: tuple[str, subprocess.Popen[bytes]], second: signal.Signals
) -> None:
    target, _ = engine
    options = ("--target", target, "--shutdown-timeout", "3600")
    with serving(*options) as served, hostile_callers(served):
        served.process.send_signal(signal.SIGTERM)
        assert served.process.stderr is not None
        assert served.process.stderr.readline() == b"draining\n"
        served.process.send_signal(second)
        assert served.process.wait(PATIENCE_SECONDS) == 128 + second
    until(lambda: is_idle(target))


@long
def test_an_engine_that_hangs_does_not_keep_a_backend_alive(
    engine: tuple[str, subprocess.Popen[bytes]],
) -> None:
    target, process = engine
    with (
        serving("--target", target, "--shutdown-timeout", "1") as served,
        served.caller(posting(orjson.dumps(ASK))) as connection,
    ):
        connection.recv(64)
        process.send_signal(signal.SIGSTOP)
        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(PATIENCE_SECONDS) == 0


@pytest.mark.parametrize("is_hurried", long_but([True], [False, True]))
def test_a_launched_engine_that_hangs_is_killed_within_the_budget(is_hurried: bool) -> None:
    timeout = "3600" if is_hurried else "0.1"
    with serving(
        "--launch", "--engine mocker --max-model-len 100000", "--shutdown-timeout", timeout
    ) as served:
        [launched] = children_of(served.process.pid)
        with served.caller(posting(orjson.dumps(ASK))) as connection:
            connection.recv(64)
            kill(launched, signal.SIGSTOP)
            served.process.send_signal(signal.SIGTERM)
            if is_hurried:
                assert served.process.stderr is not None
                while served.process.stderr.readline() != b"draining\n":
                    pass
                served.process.send_signal(signal.SIGINT)
            expected = 128 + (signal.SIGINT if is_hurried else signal.SIGTERM)
            assert served.process.wait(PATIENCE_SECONDS) == expected
        assert not is_alive(launched)


def test_json_lines_that_nobody_reads_end_at_the_second_signal(
    engine: tuple[str, subprocess.Popen[bytes]],
) -> None:
    target, _ = engine
    argv = command("jsonl", "--target", target, "--ignore-eos", "--max-tokens", "60000")
    with running(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b'{"prompt": "over and over "}\n' * 8)
        process.stdin.flush()
        process.stdout.read(1)
        pipe = process.stdout.fileno()
        until(lambda: is_filled(pipe))
        # Two different ones: of equal ones that come together the kernel keeps one.
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_SECONDS) in (128 + signal.SIGTERM, 128 + signal.SIGINT)
    until(lambda: is_idle(target))


def is_filled(pipe: int) -> bool:
    """True when there is hardly room for another line."""
    unread = int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)
    return unread > fcntl.fcntl(pipe, fcntl.F_GETPIPE_SZ) // 2


STUCK = """
import asyncio, os, sys
from enginewire.backend.commands.life import run_until_signal
from enginewire.backend.processes.stop_signals import StopSignals

async def write():
    os.write(1, b"began")
    while True:
        os.write(1, bytes(1 << 16))

sys.exit(run_until_signal(write(), StopSignals(0.1)))
"""


def test_a_command_that_is_stuck_in_a_write_ends_in_its_time_after_one_signal() -> None:
    with running([sys.executable, "-c", STUCK], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.read(5)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_SECONDS) == 128 + signal.SIGTERM


HIT_AGAIN = """
import asyncio, os, signal
from enginewire.backend.commands.life import run_until_signal

async def work():
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.sleep(60)

assert run_until_signal(work()) == 128 + signal.SIGTERM
os.kill(os.getpid(), signal.SIGINT)
"""


def test_ctrl_c_behind_the_end_is_no_traceback() -> None:
    done = subprocess.run([sys.executable, "-c", HIT_AGAIN], capture_output=True, timeout=PATIENCE_SECONDS)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, b"")


def test_callers_of_the_metrics_do_not_keep_an_engine_alive(socket_folder: Path) -> None:
    options = ["--engine", "mocker", "--uds", str(socket_folder / "e"), "--metrics-port", "0"]
    argv = [sys.executable, "-m", "enginewire.server", *options, "--log-format", "pretty"]
    with running(argv, stderr=subprocess.PIPE) as process, contextlib.ExitStack() as stack:
        assert process.stderr is not None
        while b"metrics at" not in (line := process.stderr.readline()):
            assert line, "it ended"
        port = int(line.rpartition(b":")[2].partition(b"/")[0])
        while b"ready" not in process.stderr.readline():
            pass
        for said in (b"", b"GET /metrics HTTP/1.1\r\n", b"GET /metrics HTTP/1.1\r\n\r\n"):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            connection.sendall(said)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_SECONDS) == 0
