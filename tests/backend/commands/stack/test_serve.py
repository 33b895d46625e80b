"""`enginewire serve` as its users run it: what it shows, what answers behind it, and how it ends."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from enginewire.backend.commands.stack.panel import QUESTION
from enginewire.server.demo_model import questions
from tests.backend.our_processes import children_of, is_alive, running
from tests.backend.terminal import CTRL_C, Terminal
from tests.patience import PATIENCE_SECONDS
from tests.repository import ROOT

SERVE = [sys.executable, "-m", "enginewire", "serve"]


def typed(line: str) -> str:
    """What a command line prints in a shell of a checkout."""
    done = subprocess.run(
        line, shell=True, cwd=ROOT, capture_output=True, encoding="utf-8", timeout=PATIENCE_SECONDS, input=""
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*SERVE, *arguments], capture_output=True, encoding="utf-8", timeout=PATIENCE_SECONDS
    )


def test_a_terminal_gets_a_bar_then_a_panel_with_lines_that_work(socket_folder: Path) -> None:
    path = socket_folder / "b.sock"
    with Terminal([*SERVE, "--http-port", "0", "--uds", str(path), "--max-num-seqs", "7"]) as terminal:
        assert "loading ━" in terminal.until("╭─ enginewire serve ─")
        panel = terminal.until("Ctrl-C ends all of it.")
        started = children_of(terminal.process.pid)
        assert '"event"' not in terminal.text
        assert "fork" not in terminal.text
        for row in (
            "page",
            "API",
            f"gRPC    unix:{path}",
            "model   builtin:demo",
            "device  cpu, ",
            "7 sequences",
        ):
            assert f"{row}" in panel, row
        assert "blocks of 16 = " in panel
        curl, chat = (line.removeprefix("$ ") for line in panel.splitlines() if line.startswith("$ "))
        answer = json.loads(typed(curl))
        assert answer["choices"][0]["message"]["content"] == questions()[QUESTION]
        assert chat.endswith(f"enginewire chat unix:{path}")
        assert typed(chat) == ""
        terminal.type(CTRL_C)
        assert terminal.exit_code() == 0
        assert '"event"' not in terminal.text
    assert len(started) == 1
    assert not any(map(is_alive, started))
    assert not path.exists()


def test_elsewhere_it_prints_plain_lines_and_sigterm_ends_it(socket_folder: Path) -> None:
    argv = [*SERVE, "--http-port", "0", "--engine", "mocker", "--uds", str(socket_folder / "b.sock")]
    argv += ["--served-model-name", "llama"]
    with running(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline().decode() for _ in range(8)]
        assert [line.split(": ")[0] for line in lines[:-1]] == [
            "page",
            "API",
            "gRPC",
            "model",
            "engine",
            "KV",
            "limits",
        ]
        assert lines[3] == "model: llama\n"
        assert json.loads(typed(lines[7]))["model"] == "llama"
        started = children_of(process.pid)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_SECONDS) == 0
        assert process.stderr is not None
        assert b'{"event": "drained: ' in process.stderr.read()
    assert started
    assert not any(map(is_alive, started))


def test_an_option_that_nobody_knows_is_named(socket_folder: Path) -> None:
    done = run("--uds", str(socket_folder / "b.sock"), "--http-port", "0", "--no-such-option")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[-1].endswith("unrecognized arguments: --no-such-option")


def test_a_port_in_use_ends_the_engine_too(socket_folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = run("--uds", str(socket_folder / "b.sock"), "--http-port", port, "--engine", "mocker")
    assert (done.returncode, done.stdout) == (98, "")
    assert f"enginewire serve: 127.0.0.1:{port}: Address already in use" in done.stderr
    assert "drained: " in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--launch", "m"], "--launch: give the engine's MODEL and options to enginewire serve itself"),
        (["m", "--target", "localhost:1"], "m: no engine is started beside --target"),
        (["--http-port", "x"], "--http-port: must be a whole number from 0 to 65535, got 'x'"),
    ],
)
def test_options_that_make_no_sense_are_named(arguments: list[str], message: str) -> None:
    done = run(*arguments)
    assert (done.returncode, done.stderr) == (2, f"enginewire serve: {message}\n")
