"""What systemd hears: to be ready, to be alive, to stop; and nobody anything where it does not listen."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from enginewire.program import event_loop, systemd
from tests.patience import PATIENCE_SECONDS


@pytest.fixture(params=["path", "abstract"])
def heard(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[socket.socket]:
    name = str(tmp_path / "n") if request.param == "path" else f"@enginewire-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(name.replace("@", "\0"))
        listener.settimeout(PATIENCE_SECONDS)
        monkeypatch.setenv("NOTIFY_SOCKET", name)
        yield listener


def test_a_word_is_heard(heard: socket.socket) -> None:
    systemd.tell(systemd.READY)
    assert heard.recv(64) == b"READY=1"


def test_nobody_has_to_listen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    systemd.tell(systemd.READY)
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "nobody"))
    systemd.tell(systemd.READY)


@pytest.mark.parametrize(
    ("environment", "seconds"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "60000000"}, 30.0),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": str(os.getpid())}, 30.0),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
    ],
)
def test_signs_of_life_come_twice_as_often_as_they_have_to(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], seconds: float | None
) -> None:
    for name in ("WATCHDOG_USEC", "WATCHDOG_PID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert systemd.seconds_between_signs() == seconds


def test_a_program_shows_life_as_long_as_its_loop_turns(
    heard: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "2000")
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))

    async def program() -> None:
        for _ in range(3):
            assert await asyncio.to_thread(heard.recv, 64) == b"WATCHDOG=1"

    event_loop.run(program())
