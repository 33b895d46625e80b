from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from enginewire import v1 as pb
from enginewire.backend.commands.demo_show import QUESTIONS, Answer, Screen, next_steps
from enginewire.backend.commands.options import DemoOptions
from enginewire.backend.decoding.annotated import BackendOutput
from enginewire.server import demo_model
from tests.backend.our_processes import children_of, is_alive, running, until
from tests.long import long
from tests.patience import PATIENCE_SECONDS

FAQ = Path(demo_model.__file__).with_name("faq.toml")
PROCESS_LINE = re.compile(r"^the (engine server|backend): pid (\d+), unix:(\S+)$", re.MULTILINE)


def demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "enginewire.backend.commands.demo", *arguments]
    return subprocess.run(argv, capture_output=True, encoding="utf-8", timeout=PATIENCE_SECONDS)


def test_the_last_lines_of_an_engine_that_dies_are_for_people() -> None:
    done = demo("--engine", "tests.end_to_end.slow_engine:FailsToStart")
    assert done.returncode == 1
    assert "no weights there" in done.stderr
    assert '{"event"' not in done.stderr


def expected_answers() -> list[str]:
    answers = {
        question: entry["answer"]
        for entry in tomllib.loads(FAQ.read_text(encoding="utf-8"))["faq"]
        for question in entry["questions"]
    }
    return [answers[question] for question in QUESTIONS]


def test_the_answers_of_the_built_in_model_are_streamed_by_two_processes_that_are_gone_afterwards() -> None:
    done = demo()
    assert (done.returncode, done.stderr) == (0, "")
    for question, answer in zip(QUESTIONS, expected_answers(), strict=True):
        assert f"> {question}\n{answer}\n(eos: " in done.stdout
    found = PROCESS_LINE.findall(done.stdout)
    assert [name for name, _, _ in found] == ["engine server", "backend"]
    assert not any(is_alive(int(pid)) or Path(socket).exists() for _, pid, socket in found)
    assert "Both have drained.\n\nTalk to it yourself, or serve it with its API and page:\n" in done.stdout
    assert "\x1b" not in done.stdout


MOCKER = DemoOptions(model="mocker", engine="mocker")


@pytest.mark.parametrize(
    ("options", "place", "command"),
    [
        pytest.param(DemoOptions(), sys.prefix, "bin/enginewire", marks=long),
        pytest.param(MOCKER, sys.prefix, "bin/enginewire", marks=long),
        pytest.param(MOCKER, "/", f"{sys.prefix}/bin/enginewire".lstrip("/"), marks=long),
        (MOCKER, ".", "enginewire"),
    ],
    ids=["with the built-in model", "installed in the folder", "below the root", "elsewhere"],
)
def test_what_it_says_to_type_next_works(
    options: DemoOptions, place: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path if place == "." else place)
    monkeypatch.setenv("PATH", f"{sys.prefix}/bin:{os.environ['PATH']}")
    chat, serve = next_steps(options)[1:]
    for typed in (chat, serve):
        assert typed.split()[0] == command
        assert ("--engine" in typed) == (options is MOCKER)
    done = subprocess.run(
        chat,
        shell=True,
        input="What does Drain do?\n",
        capture_output=True,
        encoding="utf-8",
        timeout=PATIENCE_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    done = subprocess.run(
        f"{serve} --dump-config", shell=True, capture_output=True, encoding="utf-8", timeout=PATIENCE_SECONDS
    )
    assert done.returncode == 0, done.stderr
    assert f"{options.model} --engine {options.engine}".removesuffix(" --engine torch") in done.stdout


def test_the_built_in_model_need_not_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(sys.prefix)
    assert next_steps(DemoOptions())[1:] == ("  bin/enginewire chat", "  bin/enginewire serve")


def test_the_answers_show_characters_of_several_tokens() -> None:
    answers = "".join(expected_answers())
    assert re.search("[ぁ-ん]", answers)
    assert re.search("[\U0001f300-\U0001faff]", answers)
    assert "\u200d" in answers


def test_every_engine_can_be_shown() -> None:
    done = demo("--engine", "mocker", "mocker")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"user: {QUESTIONS[0]}\nassistant: \n(eos: " in done.stdout


def test_an_engine_that_does_not_start_is_a_clear_error() -> None:
    done = demo("--engine", "nonsense")
    assert done.returncode == 1
    assert done.stderr.startswith(
        "enginewire demo: the engine server ended with exit code 2, its last lines:\n"
    )
    assert "Traceback" not in done.stderr


def test_ctrl_c_while_starting_leaves_no_process() -> None:
    argv = [sys.executable, "-m", "enginewire.backend.commands.demo"]
    with running(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        until(lambda: len(children_of(process.pid)) == 2)
        started = children_of(process.pid)
        process.send_signal(2)
        assert process.wait(PATIENCE_SECONDS) == 130
        assert not any(map(is_alive, started))


@pytest.mark.parametrize(("is_terminal", "shown"), [(True, "\x1b[1mhi\x1b[0m\n"), (False, "hi\n")])
def test_only_a_terminal_gets_styles(is_terminal: bool, shown: str) -> None:
    class Out(io.StringIO):
        def isatty(self) -> bool:
            return is_terminal

    out = Out()
    Screen(out).line("hi", "\x1b[1m")
    assert out.getvalue() == shown


def test_an_answer_sums_up_reason_and_speed() -> None:
    answer = Answer(asked_at=10.0)
    answer.add(BackendOutput([1], text="a"), 10.5)
    answer.add(BackendOutput([2, 3], text="b", finish_reason=pb.FINISH_REASON_LENGTH), 11.5)
    assert answer.text == "ab"
    assert answer.summary() == "(length: 3 tokens, first after 500 ms, then 2 tokens/s)"
