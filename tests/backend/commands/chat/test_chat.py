"""The chat as its users run it: at a terminal and in a pipe, with its own backend and with a running one."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from enginewire.server.demo_model import questions
from tests.backend.our_processes import children_of, command, is_alive, is_idle, load_of, running, until
from tests.backend.terminal import CTRL_C, CTRL_D, PROMPT, Terminal
from tests.long import long
from tests.patience import PATIENCE_SECONDS

CHAT = [sys.executable, "-m", "enginewire", "chat"]
DRAIN, JAPANESE = "What does Drain do?", "なぜ文字を保留するのですか?"
SLOW_MOCKER = "--engine mocker --mocker-itl-ms 5"


def piped(lines: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*CHAT, *arguments], input=lines, capture_output=True, encoding="utf-8", timeout=PATIENCE_SECONDS
    )


@pytest.fixture(scope="module")
def backend() -> Iterator[str]:
    """A running backend with a mocker of its own, which no chat ends; its target."""
    with tempfile.TemporaryDirectory(prefix="ew-") as folder:
        path = Path(folder) / "backend.sock"
        argv = command("serve", "--launch", SLOW_MOCKER, "--uds", str(path))
        with running(argv, stderr=subprocess.PIPE) as process:
            assert process.stderr is not None
            until(lambda: b"listening on unix" in process.stderr.readline(), PATIENCE_SECONDS)
            until(path.exists, PATIENCE_SECONDS)
            yield f"unix:{path}"
            process.terminate()
            assert process.wait(PATIENCE_SECONDS) == 0


@long
def test_a_person_talks_to_the_built_in_model() -> None:
    with Terminal(CHAT) as terminal:
        assert "loading ━" in terminal.until("/help shows what you can type.")
        assert '"event"' not in terminal.text
        terminal.until(PROMPT)
        terminal.type(f"{JAPANESE}\n")
        assert terminal.until("(eos, ").endswith(f"\n{questions()[JAPANESE]}\n")
        terminal.until(PROMPT)
        terminal.type("/tokens\n")
        terminal.until(PROMPT)
        terminal.type("/stop DRAINED\n")
        terminal.until(PROMPT)
        terminal.type(f"{DRAIN}\n")
        terminal.until("(stop at 'DRAINED', ")
        assert terminal.raw.count("\x1b[38;5;255;48;5;22m") == 8, "every other one of 16 tokens"
        terminal.until(PROMPT)
        terminal.type("/quit\n")
        assert terminal.exit_code() == 0
        assert terminal.text.rstrip().endswith("/quit")


def test_ctrl_c_ends_the_answer_and_never_the_chat() -> None:
    with Terminal([*CHAT, "--launch", SLOW_MOCKER, "--ignore-eos"]) as terminal:
        for question in ("over and over", "again and again"):
            terminal.until(PROMPT)
            terminal.type(f"{question}\n")
            terminal.until("user: ")
            terminal.type(CTRL_C)
            terminal.until("(aborted)")
        terminal.until(PROMPT)
        terminal.type(f"half a line{CTRL_C}")
        terminal.until("Ctrl-D or /quit leaves")
        terminal.until(PROMPT)
        terminal.type("/nonsense\n")
        terminal.until("enginewire chat: /nonsense: commands are /tokens, /stop")
        terminal.until(PROMPT)
        started = children_of(terminal.process.pid)
        assert started
        terminal.type(CTRL_D)
        assert terminal.exit_code() == 0
    assert not any(map(is_alive, started))


def test_sigterm_ends_the_chat_and_its_engine_from_the_prompt() -> None:
    with Terminal([*CHAT, "--launch", SLOW_MOCKER]) as terminal:
        terminal.until(PROMPT)
        started = children_of(terminal.process.pid)
        terminal.process.send_signal(signal.SIGTERM)
        assert terminal.exit_code() == 128 + signal.SIGTERM
        assert "Traceback" not in terminal.text
    assert started
    assert not any(map(is_alive, started))


def test_a_pipe_gets_plain_text_line_by_line() -> None:
    lines = f"{DRAIN}\n\n/stop assistant\n/tokens\n{DRAIN}\n//tokens\n"
    done = piped(lines, "--launch", "--engine mocker", "--max-tokens", "64")
    assert done.returncode == 0
    # The mocker says the conversation again from its beginning.
    cut = "|".join(f"user: {DRAIN}\nassistant")
    assert done.stdout == f"user: {DRAIN}\nassistant: \n{cut}\n{cut}\n"


def test_a_running_backend_answers_and_outlives_the_chat(backend: str) -> None:
    for _ in range(2):
        done = piped("日本 🎉\n/clear\n/tokens\nxy\n", backend, "--stop", "assistant")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == "user: 日本 🎉\n" + "|".join("user: xy\nassistant") + "\n"


def test_what_cannot_be_asked_is_said_and_the_chat_goes_on(backend: str) -> None:
    lines = "/params temperature=hot\n/params nope=1\n/params seed\n/clear all\n/stop 'x\n/params n=2\nok\n"
    allowed = "max_tokens, min_tokens, temperature, top_p, top_k, min_p, seed, ignore_eos"
    done = piped(lines, backend, "--stop", "ok")
    assert done.returncode == 1
    assert done.stdout == "user: \n"
    assert done.stderr.splitlines() == [
        "enginewire chat: temperature: must be a number from 0 to 100, got 'hot'",
        f"enginewire chat: nope: allowed are {allowed}",
        "enginewire chat: /params seed: must be NAME=VALUE",
        "enginewire chat: /clear: takes nothing behind it, got all",
        "enginewire chat: No closing quotation",
        f"enginewire chat: n: allowed are {allowed}",
    ]


def test_a_refused_question_is_one_line_and_the_next_one_is_answered(backend: str) -> None:
    done = piped(f"{'long ' * 1000}\nshort\n", backend, "--max-tokens", "11")
    assert (done.returncode, done.stdout) == (1, "user: short\n")
    (line,) = done.stderr.splitlines()
    assert line.startswith("enginewire chat: INVALID_ARGUMENT: ")
    assert "allowed 1..4095" in line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["http://127.0.0.1:8000"], "BACKEND: http://127.0.0.1:8000 is no gRPC name such as "),
        (["localhost:1", "--launch", "m"], "--launch: the backend localhost:1 has its own engine"),
        (["--n", "2"], "--n: a chat has one answer"),
        (["--temperature", "x"], "--temperature: must be a number from 0 to 100, got 'x'"),
    ],
)
def test_options_that_make_no_sense_are_named(arguments: list[str], message: str) -> None:
    done = piped("", *arguments)
    assert done.returncode == 2
    assert done.stderr.startswith(f"enginewire chat: {message}")


def test_nobody_there_is_one_line(socket_folder: Path) -> None:
    target = f"unix:{socket_folder}/none"
    done = piped("hi\n", target, "--connect-timeout", "0.2")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"enginewire chat: {target}: nobody answers within 0.2 s\n"


def test_input_that_is_no_text_ends_the_chat(backend: str) -> None:
    done = subprocess.run([*CHAT, backend], input=b"\xff\n", capture_output=True, timeout=PATIENCE_SECONDS)
    assert (done.returncode, done.stderr) == (1, b"enginewire chat: line 1 is not UTF-8\n")


def test_leaving_in_the_middle_of_an_answer_leaves_nothing_in_the_engine(socket_folder: Path) -> None:
    path = socket_folder / "engine.sock"
    engine = [sys.executable, "-m", "enginewire.server", *SLOW_MOCKER.split(), "--uds", str(path)]
    with running(engine, stderr=subprocess.DEVNULL):
        load_of(f"unix:{path}")
        argv = [*CHAT, "--target", f"unix:{path}", "--ignore-eos"]
        with running(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as chat:
            assert chat.stdin is not None
            assert chat.stdout is not None
            chat.stdin.write(b"over and over\n")
            chat.stdin.flush()
            assert chat.stdout.read(4) == b"user"
            chat.send_signal(signal.SIGTERM)
            assert chat.wait(PATIENCE_SECONDS) == 128 + signal.SIGTERM
        until(lambda: is_idle(f"unix:{path}"), PATIENCE_SECONDS)
