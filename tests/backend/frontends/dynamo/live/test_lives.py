"""Ends of callers, engines and workers, while answers are under way: none is lost, nothing stays behind."""

from __future__ import annotations

import json
import signal

import httpx2

from tests.backend.frontends.dynamo.live.conftest import (
    PATIENCE_SECONDS,
    Asked,
    Deployment,
    complete,
    text_of,
)
from tests.backend.our_processes import is_idle, until

CROWD = 8
MOCKER = ("--engine", "mocker", "--mocker-itl-ms", "20")
# The mocker repeats its prompt: of equal tokens, wherever an answer goes on, none may be lost or come twice.
# At the end of the prompt it would say that it is done.
LONG = {"prompt": [97] * 400, "max_tokens": 150, "ignore_eos": True}
TEXT = "a" * 150


def crowd(url: str) -> list[Asked]:
    return [Asked(lambda: complete(url, **LONG)) for _ in range(CROWD)]


def texts(all_asked: list[Asked]) -> set[str]:
    return {text_of(asked.wait()) for asked in all_asked}


def begun(url: str) -> httpx2.Client:
    """A caller who waits for a stream; closing it hangs up."""
    client = httpx2.Client()
    asked = {"model": "builtin:demo", "temperature": 0, **LONG, "stream": True}
    request = client.build_request("POST", f"{url}/completions", json=asked)
    Asked(lambda: client.send(request, stream=True))
    return client


def test_callers_who_hang_up_leave_nothing_in_the_engine(deployment: Deployment) -> None:
    """One request runs, and one waits."""
    engine = deployment.engine(*MOCKER, "--max-num-seqs", "1")
    deployment.worker(engine)
    callers = [begun(deployment.url) for _ in range(2)]
    until(lambda: (engine.load().running, engine.load().waiting) == (1, 1))
    for caller in callers:
        caller.close()
    until(lambda: is_idle(engine.target))
    assert engine.load().tokens_generated < LONG["max_tokens"]


def test_a_greedy_answer_goes_on_with_the_tokens_of_the_model(deployment: Deployment) -> None:
    engines = deployment.engine(), deployment.engine()
    for engine in engines:
        deployment.worker(engine)
    asked = {
        "model": "builtin:demo",
        "temperature": 0,
        "prompt": "Enginewire is",
        "max_tokens": 400,
        "ignore_eos": True,
    }
    whole = text_of(complete(deployment.url, **asked))
    with httpx2.stream(
        "POST", f"{deployment.url}/completions", json={**asked, "stream": True}, timeout=None
    ) as response:
        lines = response.iter_lines()
        begun = [next(lines)]
        running = max(engines, key=lambda engine: engine.load().running)
        running.process.kill()
        rest = [line for line in (*begun, *lines) if line.startswith("data: {")]
    chunks = [json.loads(line.removeprefix("data: ")) for line in rest]
    assert "".join(choice["text"] for chunk in chunks for choice in chunk["choices"]) == whole


def test_an_answer_goes_on_when_its_engine_dies(deployment: Deployment) -> None:
    first, second = deployment.engine(*MOCKER), deployment.engine(*MOCKER)
    deployment.worker(first)
    deployment.worker(second)
    all_asked = crowd(deployment.url)
    until(lambda: first.load().running > 0 and second.load().running > 0)
    first.process.kill()
    assert texts(all_asked) == {TEXT}
    until(lambda: is_idle(second.target))
    # It is not asked any more.
    until(lambda: len(deployment.instances()) == 1)


def test_an_answer_goes_on_when_its_worker_dies(deployment: Deployment) -> None:
    engines = deployment.engine(*MOCKER), deployment.engine(*MOCKER)
    lost, _ = (deployment.worker(engine) for engine in engines)
    all_asked = crowd(deployment.url)
    until(lambda: all(engine.load().running > 0 for engine in engines))
    lost.process.kill()
    assert texts(all_asked) == {TEXT}
    until(lambda: all(is_idle(engine.target) for engine in engines))


def test_a_worker_that_ends_finishes_what_runs(deployment: Deployment) -> None:
    engines = deployment.engine(*MOCKER), deployment.engine(*MOCKER)
    ending, _ = (deployment.worker(engine) for engine in engines)
    all_asked = crowd(deployment.url)
    until(lambda: all(engine.load().running > 0 for engine in engines))
    ending.process.send_signal(signal.SIGTERM)
    assert texts(all_asked) == {TEXT}
    assert ending.process.wait(PATIENCE_SECONDS) == 0, ending.log()
    assert len(deployment.instances()) == 1


def test_a_worker_that_has_to_end_hands_over_what_runs(deployment: Deployment) -> None:
    engines = deployment.engine(*MOCKER), deployment.engine(*MOCKER)
    ending, _ = (
        deployment.worker(engine, "--shutdown-timeout", "0", "--grace-period", "0") for engine in engines
    )
    all_asked = crowd(deployment.url)
    until(lambda: all(engine.load().running > 0 for engine in engines))
    ending.process.send_signal(signal.SIGTERM)
    assert texts(all_asked) == {TEXT}
    assert ending.process.wait(PATIENCE_SECONDS) == 0, ending.log()
    until(lambda: all(is_idle(engine.target) for engine in engines))


def test_an_engine_that_drains_is_left_and_comes_back(deployment: Deployment) -> None:
    draining, other = deployment.engine(*MOCKER, "--shutdown-timeout", "0"), deployment.engine(*MOCKER)
    for engine in (draining, other):
        deployment.worker(engine)
    all_asked = crowd(deployment.url)
    until(lambda: draining.load().running > 0)
    draining.process.send_signal(signal.SIGTERM)
    assert texts(all_asked) == {TEXT}
    until(lambda: len(deployment.instances()) == 1)
    again = deployment.again(draining, *MOCKER)
    until(lambda: len(deployment.instances()) == 2)
    until(lambda: text_of(complete(deployment.url, **LONG)) == TEXT and again.load().requests_finished > 0)


def test_a_full_queue_sends_a_request_elsewhere(deployment: Deployment) -> None:
    full = deployment.engine(*MOCKER, "--max-num-seqs", "1", "--max-num-queued-reqs", "1")
    deployment.worker(full)
    deployment.worker(deployment.engine(*MOCKER))
    assert texts(crowd(deployment.url)) == {TEXT}


def test_a_full_queue_is_told_when_there_is_nobody_else(deployment: Deployment) -> None:
    deployment.worker(deployment.engine(*MOCKER, "--max-num-seqs", "1", "--max-num-queued-reqs", "1"))
    codes = [asked.wait().status_code for asked in crowd(deployment.url)]
    assert set(codes) == {200, 503}


def test_a_worker_ends_with_an_engine_that_is_not_the_same_any_more(deployment: Deployment) -> None:
    engine = deployment.engine(*MOCKER)
    worker = deployment.worker(engine)
    engine.process.kill()
    until(lambda: deployment.instances() == [])
    deployment.again(engine, *MOCKER, "--max-num-seqs", "3")
    assert worker.process.wait(PATIENCE_SECONDS) == 1
    assert "another configuration" in worker.log()
