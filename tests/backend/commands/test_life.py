"""The commands as their users run them: processes, pipes and signals."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import grpc
import pytest

from enginewire import v1 as pb
from tests.backend.our_processes import (
    children_of,
    command,
    is_alive,
    is_idle,
    kill,
    load_of,
    run,
    running,
    until,
)
from tests.long import long, long_but
from tests.patience import PATIENCE_SECONDS

PIPES = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
ENDLESS = ("--raw", "--ignore-eos", "--prompt", "over and over ")


@pytest.fixture(scope="module")
def shared_engine() -> Iterator[str]:
    """An engine server of its own process with 5 ms between tokens; its target."""
    with tempfile.TemporaryDirectory(prefix="ew-") as folder:
        path = Path(folder) / "engine.sock"
        options = ["--engine", "mocker", "--uds", str(path), "--mocker-itl-ms", "5"]
        with running([sys.executable, "-m", "enginewire.server", *options], stderr=subprocess.DEVNULL):
            until(path.exists)
            load_of(f"unix:{path}")
            yield f"unix:{path}"


@pytest.fixture
def engine(shared_engine: str) -> Iterator[str]:
    """The same for every test, and idle after each of them."""
    yield shared_engine
    until(lambda: is_idle(shared_engine), within=10.0)


def ask(text: str, **fields: object) -> pb.BackendServiceGenerateRequest:
    return pb.BackendServiceGenerateRequest(text=text, request=pb.PreprocessedRequest(**fields))


def test_text_goes_in_and_text_comes_out_whatever_the_locale(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LC_ALL", "C")
    monkeypatch.setenv("PYTHONCOERCECLOCALE", "0")
    monkeypatch.setenv("PYTHONUTF8", "0")
    done = run(
        "generate", "--target", engine, "--raw", "--stats", "--stop", "STOP", given="日本 🎉 STOP here"
    )
    assert (done.returncode, done.stdout) == (0, "日本 🎉 \n")
    assert "choice 0: stop at 'STOP'" in done.stderr


@long
def test_the_prompt_can_be_a_file(engine: str, tmp_path: Path) -> None:
    path = tmp_path / "prompt"
    path.write_text("héllo")
    done = run("generate", "--target", engine, "--raw", "--prompt-file", str(path))
    assert (done.returncode, done.stdout) == (0, "héllo\n")
    path.write_bytes(b"\xff")
    done = run("generate", "--target", engine, "--prompt-file", str(path))
    assert (done.returncode, done.stderr) == (1, f"enginewire-backend: {path}: not UTF-8\n")


def test_ctrl_c_aborts_the_request_and_exits_with_130(engine: str) -> None:
    with running(command("generate", "--target", engine, *ENDLESS), **PIPES) as process:
        assert process.stdout is not None
        assert process.stdout.read(4) == b"over"
        assert load_of(engine).running == 1
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_SECONDS) == 130
        assert process.stderr is not None
        assert process.stderr.read() == b""
    until(lambda: is_idle(engine), within=10.0)


def test_output_that_nobody_reads_any_more_ends_the_command_quietly(engine: str) -> None:
    with running(command("generate", "--target", engine, *ENDLESS), **PIPES) as process:
        assert process.stdout is not None
        process.stdout.read(1)
        process.stdout.close()
        assert process.wait(PATIENCE_SECONDS) == 141
        assert process.stderr is not None
        assert process.stderr.read() == b""
    until(lambda: is_idle(engine), within=10.0)


def test_an_engine_that_cannot_be_reached_is_one_line(socket_folder: Path) -> None:
    done = run("generate", "--target", f"unix:{socket_folder}/none", "--connect-timeout", "0.3", "hi")
    assert done.returncode == 1
    assert done.stderr.startswith("enginewire-backend: ENGINE_DEAD: ")
    assert done.stderr.count("\n") == 1


def test_json_lines_go_round(engine: str) -> None:
    given = '{"id": "a", "prompt": "日本"}\n{broken\n{"id": "b", "prompt": "xyz"}'
    done = run("jsonl", "--target", engine, given=given)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    texts = {name: "".join(line["data"]["text"] for line in lines if line["id"] == name) for name in "ab"}
    assert done.returncode == 1
    assert texts == {"a": "日本", "b": "xyz"}
    assert [line["line"] for line in lines if "error" in line] == [2]


def test_json_lines_from_file_to_file(engine: str, tmp_path: Path) -> None:
    source, target = tmp_path / "in", tmp_path / "out"
    source.write_text('{"prompt": "ok"}\n')
    done = run("jsonl", "--target", engine, "--input", str(source), "--output", str(target))
    assert (done.returncode, done.stdout) == (0, "")
    assert [json.loads(line)["id"] for line in target.read_text().splitlines()] == [1, 1, 1]


def test_ctrl_c_ends_json_lines_while_the_input_is_still_open(engine: str) -> None:
    argv = command("jsonl", "--target", engine, "--ignore-eos")
    with running(argv, stdin=subprocess.PIPE, **PIPES) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b'{"prompt": "over and over "}\n')
        process.stdin.flush()
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_SECONDS) == 130
        assert process.stderr is not None
        assert process.stderr.read() == b""
    until(lambda: is_idle(engine), within=10.0)


def test_a_launched_engine_is_drained_and_leaves_nothing() -> None:
    done = run("generate", "--launch", "--engine mocker", "--raw", "--prompt", "hi")
    assert (done.returncode, done.stdout) == (0, "hi\n")
    assert "drained: 65536 of 65536 KV blocks free" in done.stderr
    folder = done.stderr.partition("listening on unix:")[2].partition("/engine.sock")[0]
    assert folder.startswith("/")
    assert not Path(folder).exists()


def test_an_engine_that_does_not_start_is_named_with_its_exit_code_and_last_words() -> None:
    done = run("generate", "--launch", "--engine nonsense", "hi")
    assert done.returncode == 1
    assert "enginewire-backend: the engine server ended with exit code 2, its last lines:" in done.stderr
    assert "--engine: must be torch, mocker, upstream, vllm, openai or module:Class" in done.stderr


def test_a_launched_engine_that_is_killed_is_started_again_and_the_answer_goes_on() -> None:
    arguments = ("generate", "--launch", "--engine mocker --mocker-itl-ms 5", *ENDLESS, "--max-tokens", "200")
    with running(command(*arguments), **PIPES) as process:
        assert process.stdout is not None
        begin = process.stdout.read(1)
        [engine] = children_of(process.pid)
        kill(engine)
        # 13 times its 14 characters and an EOS that has no text, then 5 more.
        assert (begin + process.stdout.read()).decode() == 13 * "over and over " + "over \n"
        assert process.wait(PATIENCE_SECONDS) == 0
        assert process.stderr is not None
        told = process.stderr.read().decode()
    assert "the engine server ended with signal SIGKILL, its last lines; it is started again\n" in told
    assert told.count("listening on unix:") == 2
    assert not is_alive(engine)


def test_a_launched_engine_that_dies_again_and_again_is_given_up(socket_folder: Path) -> None:
    argv = command("serve", "--launch", "--engine mocker", "--uds", str(socket_folder / "backend.sock"))
    with running(argv, **PIPES) as process:
        assert process.stderr is not None
        while b"backend.sock" not in process.stderr.readline():
            pass

        def has_ended_without_children() -> bool:
            for child in children_of(process.pid):
                with suppress(ProcessLookupError):
                    kill(child)
            return process.poll() is not None

        until(has_ended_without_children)
        assert process.wait(PATIENCE_SECONDS) == 1
        told = process.stderr.read().decode()
    assert told.count("it is started again") == 4
    assert "given up at its death number 5 in a row, ended with signal SIGKILL" in told


@long
def test_without_replay_a_launched_engine_that_is_killed_ends_the_answer() -> None:
    launch = "--engine mocker --mocker-itl-ms 5"
    argv = command("generate", "--launch", launch, *ENDLESS, "--no-replay")
    with running(argv, **PIPES) as process:
        assert process.stdout is not None
        process.stdout.read(1)
        [engine] = children_of(process.pid)
        kill(engine)
        assert process.wait(PATIENCE_SECONDS) == 1
        assert process.stderr is not None
        assert "the engine server ended with signal SIGKILL" in process.stderr.read().decode()
    assert not is_alive(engine)


def test_a_launched_engine_does_not_outlive_a_backend_that_is_killed(socket_folder: Path) -> None:
    argv = command("generate", "--launch", "--engine mocker --mocker-itl-ms 5", *ENDLESS)
    # Nobody is left to remove the folder of the sidecar, so it goes where the fixture cleans up.
    with running(argv, env={**os.environ, "TMPDIR": str(socket_folder)}, **PIPES) as process:
        assert process.stdout is not None
        process.stdout.read(1)
        [engine] = children_of(process.pid)
        kill(process.pid)
        process.wait()
    until(lambda: not is_alive(engine))


def test_a_terminals_ctrl_c_reaches_the_backend_alone() -> None:
    argv = command("generate", "--launch", "--engine mocker --mocker-itl-ms 5", *ENDLESS)
    with running(argv, start_new_session=True, **PIPES) as process:
        assert process.stdout is not None
        process.stdout.read(1)
        [engine] = children_of(process.pid)
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(PATIENCE_SECONDS) == 130
        assert process.stderr is not None
        assert "drained: 65536 of 65536 KV blocks free" in process.stderr.read().decode()
    assert not is_alive(engine)


def test_serve_answers_drains_and_removes_its_socket(engine: str, socket_folder: Path) -> None:
    path = socket_folder / "backend.sock"
    argv = command("serve", "--target", engine, "--uds", str(path))
    with running(argv, stderr=subprocess.PIPE) as process, grpc.insecure_channel(f"unix:{path}") as channel:
        stub = pb.BackendServiceStub(channel)
        call = stub.Generate(ask("a text that takes a while"), wait_for_ready=True, timeout=PATIENCE_SECONDS)
        begin = next(call).annotated.data.text
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        process.send_signal(signal.SIGTERM)
        assert begin + "".join(item.annotated.data.text for item in call) == "a text that takes a while"
        assert process.wait(PATIENCE_SECONDS) == 0
    assert not path.exists()


@pytest.mark.parametrize("is_full", long_but([False], [False, True]), ids=["unread", "full"])
def test_where_nobody_reads_what_serve_says_it_answers_and_drains_all_the_same(
    engine: str, socket_folder: Path, is_full: bool
) -> None:
    argv = command("serve", "--target", engine, "--uds", f"{socket_folder}/b", "--health-port", "0")
    unread, log = os.pipe()
    os.close(unread)
    if is_full:
        os.dup2(os.open("/dev/full", os.O_WRONLY), log)
    with running(argv, stderr=log) as process, grpc.insecure_channel(f"unix:{socket_folder}/b") as channel:
        call = pb.BackendServiceStub(channel).Generate(
            ask("to its end"), wait_for_ready=True, timeout=PATIENCE_SECONDS
        )
        begin = next(call).annotated.data.text
        process.send_signal(signal.SIGTERM)
        assert begin + "".join(item.annotated.data.text for item in call) == "to its end"
        assert process.wait(PATIENCE_SECONDS) == 0
    os.close(log)


def test_a_second_signal_ends_serve_at_once(engine: str, socket_folder: Path) -> None:
    path = socket_folder / "backend.sock"
    argv = command("serve", "--target", engine, "--uds", str(path))
    with running(argv, stderr=subprocess.PIPE) as process, grpc.insecure_channel(f"unix:{path}") as channel:
        stops = pb.StopConditions(ignore_eos=True)
        call = pb.BackendServiceStub(channel).Generate(
            ask("for ever", stop_conditions=stops), wait_for_ready=True, timeout=PATIENCE_SECONDS
        )
        next(call)
        assert process.stderr is not None
        process.send_signal(signal.SIGTERM)
        assert process.stderr.readline() == f"listening on unix:{path}\n".encode()
        assert process.stderr.readline() == b"draining\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_SECONDS) == 130
        with pytest.raises(grpc.RpcError):
            list(call)
    until(lambda: is_idle(engine), within=10.0)


def test_serve_refuses_an_address_in_use_and_takes_over_a_dead_one(engine: str, socket_folder: Path) -> None:
    path = socket_folder / "backend.sock"
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()
        done = run("serve", "--target", engine, "--uds", str(path))
        hint = "in use by another server; choose another address with --uds or --port"
        assert (done.returncode, done.stderr) == (98, f"enginewire-backend: {path}: {hint}\n")
    with running(command("serve", "--target", engine, "--uds", str(path)), stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == f"listening on unix:{path}\n".encode()
        done = run("serve", "--target", engine, "--uds", str(path))
        assert done.returncode == 98
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_SECONDS) == 0


def test_serve_does_not_remove_a_file_that_is_no_socket(engine: str, socket_folder: Path) -> None:
    path = socket_folder / "precious"
    path.write_text("mine")
    done = run("serve", "--target", engine, "--uds", str(path))
    assert (done.returncode, path.read_text()) == (98, "mine")


def test_serve_picks_a_free_port_prints_it_and_shares_it_with_nobody(engine: str) -> None:
    with running(command("serve", "--target", engine, "--port", "0"), stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        target = process.stderr.readline().decode().removeprefix("listening on ").strip()
        with grpc.insecure_channel(target) as channel:
            items = pb.BackendServiceStub(channel).Generate(ask("hi"), timeout=PATIENCE_SECONDS)
            assert "".join(item.annotated.data.text for item in items) == "hi"
        assert run("serve", "--target", engine, "--port", target.rpartition(":")[2]).returncode == 98


@pytest.mark.parametrize("command_line", ["--help", "generate --help", "jsonl --help", "serve --version"])
def test_help_imports_nothing_heavy(command_line: str) -> None:
    code = (
        "import sys; from enginewire.backend.__main__ import main\n"
        "try: main(sys.argv[1:])\n"
        "finally: print([name for name in ('grpc', 'tokenizers', 'jinja2') if name in sys.modules])"
    )
    argv = [sys.executable, "-c", code, *command_line.split()]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1] == "[]"
