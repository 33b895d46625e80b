"""What is around an engine server goes wrong: full disks, closed streams, few descriptors, no home."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import socket
import subprocess
import sys
from pathlib import Path

import grpc
import pytest

from enginewire import v1 as pb
from enginewire.backend.engines.connection.client import EngineClient
from tests.backend.our_processes import is_idle, load_of, running, until
from tests.end_to_end.processes import Client
from tests.long import long_but
from tests.patience import PATIENCE_SECONDS
from tests.server.serving import ask

FEW_DESCRIPTORS = 64


def server(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "enginewire.server", "--engine", "mocker", *arguments]


def answer(target: str) -> int:
    """The number of tokens that somebody gets."""
    with grpc.insecure_channel(target) as channel:
        call = pb.EngineServiceStub(channel).Generate(ask(max_tokens=4), timeout=PATIENCE_SECONDS)
        return sum(len(response.output.token_ids) for response in call)


@pytest.mark.parametrize("format_", long_but(["json"], ["json", "pretty"]))
def test_a_log_that_cannot_be_written_costs_nobody_anything(folder: Path, format_: str) -> None:
    with Path("/dev/full").open("w") as full:
        argv = server("--uds", f"{folder}/e", "--log-level", "debug", "--log-format", format_)
        with running(argv, stderr=full, stdout=full) as process:
            load_of(f"unix:{folder}/e")
            assert answer(f"unix:{folder}/e") == 4
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_SECONDS) == 0


def test_without_standard_streams_a_home_or_a_place_for_temporary_files_it_serves(folder: Path) -> None:
    words = " ".join(server("--uds", f"{folder}/e"))
    environment = {"PATH": os.environ["PATH"], "TMPDIR": "/nonexistent", "XDG_RUNTIME_DIR": "/nonexistent"}
    with running(["sh", "-c", f"exec {words} <&- >&- 2>&-"], env=environment) as process:
        load_of(f"unix:{folder}/e")
        assert answer(f"unix:{folder}/e") == 4
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_SECONDS) == 0


def test_more_connections_than_descriptors_cost_only_those_that_are_too_many(folder: Path) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (FEW_DESCRIPTORS, FEW_DESCRIPTORS))

    target = f"unix:{folder}/e"
    argv = server("--uds", f"{folder}/e", "--mocker-itl-ms", "10", "--log-level", "error")
    with running(argv, preexec_fn=limit), grpc.insecure_channel(target) as channel:
        load_of(target)
        call = pb.EngineServiceStub(channel).Generate(ask(max_tokens=100), timeout=PATIENCE_SECONDS)
        count = len(next(call).output.token_ids)
        others = [socket.socket(socket.AF_UNIX) for _ in range(2 * FEW_DESCRIPTORS)]
        for other in others:
            other.settimeout(0.01)
            try:
                other.connect(f"{folder}/e")
            except OSError:
                break  # its queue of connections is full as well
        # Who was there is served to the end; when the others have left, somebody new is as well.
        assert count + sum(len(response.output.token_ids) for response in call) == 100
        for other in others:
            other.close()
        assert answer(target) == 4
        until(lambda: is_idle(target))


async def test_of_two_addresses_of_an_engine_the_one_that_works_is_used(launch) -> None:
    _, _, port = launch("--port", "0").target().rpartition(":")
    # A port that nobody listens at.
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        dead = unused.getsockname()[1]
        async with EngineClient(f"ipv4:127.0.0.1:{dead},127.0.0.1:{port}") as client:
            assert (await client.wait_ready(PATIENCE_SECONDS)).config.model == "mocker"


async def test_a_reader_that_takes_nothing_does_not_hold_up_the_end(launch, connect) -> None:
    server = launch("--shutdown-timeout", "0.5", "--slow-consumer-timeout", "300")
    client: Client = connect(server.target())
    stalled = client.engine.Generate(ask(max_tokens=4000))
    await stalled.initial_metadata()
    server.signal(signal.SIGTERM)
    assert await asyncio.to_thread(server.exit_code) == 0
    stalled.cancel()


@pytest.mark.parametrize("number", long_but([signal.SIGHUP], [signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2]))
def test_other_signals_have_the_action_of_the_system_and_leave_a_socket_that_is_taken_over(
    launch, folder: Path, number: signal.Signals
) -> None:
    server = launch()
    server.target()
    server.signal(number)
    assert server.exit_code() == -number
    assert answer(launch().target()) == 4


def test_a_server_that_was_told_to_ignore_the_end_of_its_terminal_does(folder: Path) -> None:
    argv = ["nohup", *server("--uds", f"{folder}/e")]
    with running(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        load_of(f"unix:{folder}/e")
        process.send_signal(signal.SIGHUP)
        assert answer(f"unix:{folder}/e") == 4
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_SECONDS) == 0
