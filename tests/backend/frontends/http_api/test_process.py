"""The command as users start it: a real model, its engine and the HTTP face in processes of their own."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import OpenAI

from enginewire.backend.__main__ import missing_packages
from enginewire.server.demo_model import questions
from tests.long import long
from tests.patience import PATIENCE_SECONDS

FAQ = questions()


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """The backend, which launches the engine, and the address it prints."""
    folder = tmp_path_factory.mktemp("h")
    command = [sys.executable, "-m", "enginewire.backend", "serve", "--http-port=0", f"--uds={folder}/b"]
    log = folder / "log"
    with log.open("wb") as stderr:
        backend = subprocess.Popen([*command, "--launch=builtin:demo --log-level=error"], stderr=stderr)
    try:
        yield backend, address_in(log, backend)
    finally:
        backend.kill()
        backend.wait()


def address_in(log: Path, backend: subprocess.Popen[bytes]) -> str:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline and backend.poll() is None:
        if found := re.search(r"listening on (http://\S+)", log.read_text()):
            return found[1]
        time.sleep(0.05)
    raise AssertionError(log.read_text())


@long
def test_the_demo_model_answers_through_the_sdk_and_sigterm_ends_it(
    process: tuple[subprocess.Popen[bytes], str],
) -> None:
    backend, address = process
    question, answer = next(iter(FAQ.items()))
    with OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client:
        model = client.models.list().data[0].id
        messages = [{"role": "user", "content": question}]
        whole = client.chat.completions.create(model=model, messages=messages, temperature=0)
        stream = client.chat.completions.create(model=model, messages=messages, temperature=0, stream=True)
        streamed = "".join(choice.delta.content or "" for chunk in stream for choice in chunk.choices)
    assert whole.choices[0].message.content == answer
    assert whole.choices[0].finish_reason == "stop"
    assert streamed == answer
    backend.send_signal(signal.SIGTERM)
    assert backend.wait(PATIENCE_SECONDS) == 0


def test_packages_that_are_not_installed_are_named() -> None:
    assert missing_packages(["sys", "no_such_package"]) == ["no_such_package"]
