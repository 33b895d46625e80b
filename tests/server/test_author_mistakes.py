"""What the author of an engine does wrong is said in a sentence, by the real command line.

The engines are what a new author could have written; docs/writing-an-engine.md has a right one.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import grpc
import pytest

from enginewire import cli
from tests.end_to_end.processes import Client, EngineProcess
from tests.server.serving import ask

MISTAKES = '''
import asyncio
import time

from enginewire import v1 as pb
from enginewire.server import BaseEngine


class Right(BaseEngine):
    def __init__(self, options):
        self.model = "a constructor of its own, which calls no other one"

    async def start(self, worker_id):
        self.config.model = "m"
        self.config.vocab_size = 1000
        return self.config

    async def generate(self, request, context):
        async with self.answering(request, context) as answer:
            while not answer.is_finished:
                await asyncio.sleep(0.001)
                yield answer.token(5)


class NoOptions(Right):
    def __init__(self):
        pass


class NoGenerate(BaseEngine):
    async def start(self, worker_id):
        return self.config


class NoBase:
    def __init__(self, options):
        pass

    async def generate(self, request, context):
        yield pb.LLMEngineOutput()


class StartsNothing(Right):
    async def start(self, worker_id):
        self.config.model = "m"


class PlainStart(Right):
    def start(self, worker_id):
        return self.config


class NoModel(Right):
    async def start(self, worker_id):
        return self.config


class Coroutine(Right):
    async def generate(self, request, context):
        return [pb.LLMEngineOutput(token_ids=[5])]


class PlainGenerator(Right):
    def generate(self, request, context):
        yield pb.LLMEngineOutput(token_ids=[5])


class WrongTokenizer(Right):
    async def start(self, worker_id):
        self.config.capabilities.tokenizer = True
        return await super().start(worker_id)

    def tokenizer(self):
        return {"tokenizer.json": b"{}"}


class Wrong(Right):
    """Wrong in the way that the first token of the prompt says."""

    def generate(self, request, context):
        kind = request.token_ids[0]
        if kind == 1:
            return [pb.LLMEngineOutput(token_ids=[5])]
        if kind == 5:
            return self.holding(request, context)
        wrong = {2: self.wait, 3: self.numbers, 4: self.nothing}
        return wrong[kind]() if kind in wrong else super().generate(request, context)

    async def wait(self):
        return 5

    async def numbers(self):
        yield 5

    async def nothing(self):
        yield pb.LLMEngineOutput(token_ids=[5])

    async def holding(self, request, context):
        time.sleep(0.3)
        async for output in super().generate(request, context):
            yield output


class Numbers(Right):
    async def generate(self, request, context):
        yield 5


right = Right(None)
'''


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the author works."""
    path = tmp_path_factory.mktemp("author")
    (path / "mistakes.py").write_text(MISTAKES)
    (path / "lacking.py").write_text("import flash_attention_of_mine\n")
    (path / "model").mkdir()
    return path


def command(folder: Path, *arguments: str, hidden: str = "", is_on_path: bool = True) -> tuple[int, str]:
    """The exit code of `enginewire …` in the folder, and what it said; the module `hidden` is missing."""
    program = "import sys\nif sys.argv[1]: sys.modules[sys.argv.pop(1)] = None\nelse: sys.argv.pop(1)\n"
    program += "from enginewire.cli import main\nsys.exit(main())"
    environment = {**os.environ, "PYTHONPATH": str(folder) if is_on_path else "", "PYTHONSAFEPATH": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program, hidden, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("engine", "sentence"),
    [
        ("mistakes:NoOptions", "its constructor must take one argument, the server's options"),
        ("mistakes:NoGenerate", "no method generate\n"),
        (
            "mistakes:NoBase",
            "no method start, abort, drain, cleanup, kv_event_sources, setup_metrics, load, tok",
        ),
        ("mistakes:Coroutine", "generate is a coroutine: `async def` without a `yield`"),
        ("mistakes:PlainGenerator", "generate is a plain `def` with a `yield`: it must be an `async def`"),
        ("mistakes:right", "is a Right and not a class"),
        ("mistakes:pb", "is a module and not a class"),
        ("mistakes:Rihgt", "mistakes has no Rihgt; it has Coroutine, NoBase, NoGenerate, NoModel, "),
        ("lacking:Engine", "lacking needs flash_attention_of_mine, which is not installed"),
        ("mistakes.py:Right", "mistakes.py is a file; write the name of its module, mistakes\n"),
        ("./mistakes.py:Right", "./mistakes.py is a file; write the name of its module, mistakes\n"),
        ("elsewhere:Right", "no module named elsewhere: install it, or set PYTHONPATH to its folder\n"),
    ],
)
@pytest.mark.usefixtures("kept_logs")
def test_what_is_no_engine_is_refused_with_a_sentence(
    folder: Path,
    engine: str,
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # In this process: nothing is started of what is refused.
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    code = cli.main(["engine", "--engine", engine])
    said = "".join(capsys.readouterr())
    assert (code, said.startswith(f"--engine {engine}: {sentence}")) == (2, True), said
    assert said.count("\n") == 1


def test_a_module_in_this_folder_has_to_be_on_the_path(folder: Path) -> None:
    code, said = command(folder, "engine", "--engine", "mistakes:Right", is_on_path=False)
    where = "it is in this folder, where Python does not look; set PYTHONPATH=.\n"
    assert (code, said) == (2, f"--engine mistakes:Right: no module named mistakes: {where}")


@pytest.mark.parametrize(
    ("engine", "sentence"),
    [
        ("StartsNothing", "start must return an EngineConfig, got NoneType"),
        ("PlainStart", "start must be an `async def`: it returned EngineConfig, nothing to await"),
        ("NoModel", "EngineConfig.model: must not be empty"),
        (
            "WrongTokenizer",
            "EngineConfig.capabilities.tokenizer: tokenizer must return a Tokenizer or None, got dict",
        ),
    ],
)
def test_a_start_that_is_wrong_ends_with_a_sentence(folder: Path, engine: str, sentence: str) -> None:
    code, said = command(folder, "engine", "--engine", f"mistakes:{engine}", "--uds", str(folder / "s"))
    assert (code, f"the engine failed to start: {sentence}" in said) == (1, True), said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("arguments", "hidden", "extra"),
    [
        ((), "torch", "engine"),
        (("./model",), "transformers", "engine"),
        (("--engine", "mistakes:Right"), "structlog", "server"),
        (("--engine", "mistakes:Right", "--metrics-port", "0"), "prometheus_client", "metrics"),
    ],
)
def test_a_missing_extra_is_named(folder: Path, arguments: tuple[str, ...], hidden: str, extra: str) -> None:
    code, said = command(folder, "engine", *arguments, hidden=hidden)
    assert (code, hidden in said, f"pip install 'enginewire[{extra}]'\n" in said) == (2, True, True), said
    assert said.count("\n") == 1


@pytest.fixture(scope="module")
def process(folder: Path, tmp_path_factory: pytest.TempPathFactory):
    """An engine that answers wrongly, or rightly, as it is asked."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder))
        running = EngineProcess(folder, "--port", "0", engine="mistakes:Wrong")
    yield running
    running.end()


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        (1, "generate must return an async iterator, as `async def` with `yield` does, got list"),
        (2, "generate must return an async iterator, as `async def` with `yield` does, got coroutine"),
        (3, "generate must yield LLMEngineOutput, got int: yield what answer.token(token_id) returns"),
        (
            4,
            "the stream ended, but choice 0 had no output with a finish_reason: "
            "answer.token sets one at the last token, answer.finish for a reason of your own",
        ),
    ],
)
async def test_an_answer_that_is_wrong_ends_its_request_and_is_explained_in_the_log(
    process: EngineProcess, kind: int, sentence: str
) -> None:
    client = Client(process.target())
    beside = aiter(client.engine.Generate(ask(f"beside-{kind}", prompt=bytes([9]), max_tokens=300)))
    assert (await anext(beside)).output.token_ids == [5]
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        _ = [answer async for answer in client.engine.Generate(ask(f"r{kind}", prompt=bytes([kind])))]
    assert caught.value.code() == grpc.StatusCode.INTERNAL
    identifier = caught.value.details().removeprefix("internal error ").partition(":")[0]
    assert process.wait_for(f"internal error {identifier}") == f"internal error {identifier}: {sentence}"
    assert len([answer async for answer in beside]) == 299
    await client.channel.close()


def test_the_kit_shows_what_the_server_it_launched_says_in_its_log(folder: Path) -> None:
    launch = f"{sys.executable} -m enginewire.server --engine mistakes:Numbers --uds {{socket}}"
    code, said = command(folder, "conformance", "--launch", launch, "--run", "STR-01")
    [line] = [line for line in said.splitlines() if line.startswith("  log: ")]
    assert (code, "generate must yield LLMEngineOutput, got int" in line) == (1, True), said


async def test_who_holds_the_event_loop_is_told_in_the_log(process: EngineProcess) -> None:
    client = Client(process.target())
    assert [answer async for answer in client.engine.Generate(ask("holding", prompt=bytes([5])))]
    assert "asyncio.to_thread" in process.wait_for("generate held the event loop for ")
    await client.channel.close()


def test_an_engine_without_a_tokenizer_is_told_to_whoever_needs_one(
    process: EngineProcess, folder: Path
) -> None:
    target = process.target()
    code, said = command(folder, "backend", "generate", "--target", target, "hi")
    advice = "this engine offers no tokenizer; give the backend a folder with one (--tokenizer)"
    assert (code, said) == (1, f"enginewire-backend: MODEL_NOT_FOUND: {advice}\n")
    code, said = command(folder, "backend", "generate", "--target", target, "--tokenizer", "model", "hi")
    assert (code, said) == (1, "enginewire-backend: --tokenizer model: tokenizer.json is missing\n")
