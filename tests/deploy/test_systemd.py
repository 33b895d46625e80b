"""The units give each program the time that its end may take, and share one private folder for the socket."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from enginewire.backend.commands.serve import MARGIN_SECONDS
from enginewire.backend.config import load_serve
from enginewire.server.config.given import load_options
from enginewire.server.lifecycle import CANCEL_GRACE_SECONDS, CLEANUP_SECONDS
from tests.backend.our_processes import running
from tests.deploy.programs import DEPLOY, of_unit
from tests.patience import PATIENCE_SECONDS

ENGINE, BACKEND = (DEPLOY / "systemd" / f"enginewire-{name}.service" for name in ("engine", "backend"))


def setting(text: str, name: str) -> str:
    (value,) = re.findall(rf"^{name}=(.*)$", text, re.MULTILINE)
    return value


def test_systemd_waits_as_long_as_the_ends_may_take() -> None:
    engine = load_options(of_unit(ENGINE).arguments).shutdown_timeout + CANCEL_GRACE_SECONDS + CLEANUP_SECONDS
    backend = load_serve(of_unit(BACKEND).arguments).shutdown_timeout + MARGIN_SECONDS
    assert engine + 5 <= float(setting(ENGINE.read_text(), "TimeoutStopSec"))
    assert backend + 5 <= float(setting(BACKEND.read_text(), "TimeoutStopSec"))


def test_systemd_waits_for_the_start_as_long_as_a_backend_waits_for_its_engine() -> None:
    options = load_serve(of_unit(BACKEND).arguments)
    for unit in (ENGINE, BACKEND):
        assert float(setting(unit.read_text(), "TimeoutStartSec")) > options.connect_timeout


@pytest.fixture
def notified(folder: Path) -> Iterator[socket.socket]:
    """Where systemd listens."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(f"{folder}/notify")
        listener.settimeout(PATIENCE_SECONDS)
        yield listener


def test_the_programs_say_when_they_are_ready_alive_and_stopping(
    notified: socket.socket, folder: Path
) -> None:
    for unit in (ENGINE, BACKEND):
        assert setting(unit.read_text(), "Type") == "notify"
    environment = {**os.environ, "NOTIFY_SOCKET": f"{folder}/notify", "WATCHDOG_USEC": "200000"}
    started = [
        ["enginewire.server", "--engine", "mocker", "--uds", f"{folder}/e"],
        ["enginewire.backend", "serve", "--target", f"unix:{folder}/e", "--uds", f"{folder}/b"],
    ]
    with ExitStack() as stack:
        processes = []
        for program in started:
            argv = [sys.executable, "-m", *program]
            processes.append(stack.enter_context(running(argv, env=environment, stderr=subprocess.DEVNULL)))
            hear_until(notified, b"READY=1")
            assert notified.recv(64) == b"WATCHDOG=1"
        for process in reversed(processes):
            process.terminate()
            hear_until(notified, b"STOPPING=1")
            assert process.wait(PATIENCE_SECONDS) == 0


def hear_until(notified: socket.socket, word: bytes) -> None:
    """Signs of life come before it, and nothing else."""
    while (said := notified.recv(64)) != word:
        assert said == b"WATCHDOG=1"


def test_the_backend_looks_where_the_engine_listens() -> None:
    socket = load_options(of_unit(ENGINE).arguments).uds
    assert load_serve(of_unit(BACKEND).arguments).target == (f"unix:{socket}",)


@pytest.mark.parametrize("unit", [ENGINE, BACKEND], ids=lambda unit: unit.stem)
def test_the_folder_is_private_and_outlives_the_other_unit(unit) -> None:  # type: ignore[no-untyped-def]
    text = unit.read_text()
    assert setting(text, "RuntimeDirectory") == "enginewire"
    assert setting(text, "RuntimeDirectoryMode") == "0700"
    assert setting(text, "RuntimeDirectoryPreserve") == "yes"
    assert setting(text, "User") == "enginewire"
