"""Ends of callers, engines and workers, while answers are under way: none is lost, nothing stays behind."""

from __future__ import annotations

import signal

import httpx2

from tests.backend.frontends.dynamo.live.conftest import (
    PATIENCE_SECONDS,
    TORCH,
    Asked,
    Deployment,
    Engine,
    complete,
    text_of,
)
from tests.backend.our_processes import is_idle, until

CROWD = 8
LONG = {"prompt": "Enginewire is", "max_tokens": 600, "ignore_eos": True}


def crowd(url: str) -> list[Asked]:
    return [Asked(lambda: complete(url, **LONG)) for _ in range(CROWD)]


def expected(url: str) -> str:
    return text_of(complete(url, **LONG))


def test_a_caller_who_hangs_up_leaves_nothing_in_the_engine(shared: Deployment, engine: Engine) -> None:
    asked = {"model": "builtin:demo", "temperature": 0, **LONG, "stream": True}
    with httpx2.stream("POST", f"{shared.url}/completions", json=asked, timeout=PATIENCE_SECONDS) as response:
        next(response.iter_lines())
        assert not is_idle(engine.target)
    until(lambda: is_idle(engine.target))
    assert engine.load().tokens_generated


def test_a_request_that_waits_leaves_the_queue_with_its_caller(deployment: Deployment) -> None:
    engine = deployment.engine(*TORCH, "--max-num-seqs", "1")
    deployment.worker(engine)
    begun = [httpx2.Client(), httpx2.Client()]
    asked = {"model": "builtin:demo", "temperature": 0, **LONG, "stream": True}
    streams = []
    for client in begun:
        request = client.build_request("POST", f"{deployment.url}/completions", json=asked)
        streams.append(Asked(lambda client=client, request=request: client.send(request, stream=True)))
    until(lambda: engine.load().waiting == 1)
    for client in begun:
        client.close()
    until(lambda: is_idle(engine.target))


def test_an_answer_goes_on_when_its_engine_dies(deployment: Deployment) -> None:
    first, second = deployment.engine(), deployment.engine()
    deployment.worker(first)
    text = expected(deployment.url)
    deployment.worker(second)
    all_asked = crowd(deployment.url)
    until(lambda: first.load().running > 0 and second.load().running > 0)
    first.process.kill()
    assert {text_of(asked.wait()) for asked in all_asked} == {text}
    until(lambda: is_idle(second.target))
    # It is not asked any more.
    until(lambda: len(deployment.instances()) == 1)


def test_an_answer_goes_on_when_its_worker_dies(deployment: Deployment) -> None:
    engines = deployment.engine(), deployment.engine()
    lost, _ = (deployment.worker(engine) for engine in engines)
    text = expected(deployment.url)
    all_asked = crowd(deployment.url)
    until(lambda: all(engine.load().running > 0 for engine in engines))
    lost.process.kill()
    assert {text_of(asked.wait()) for asked in all_asked} == {text}
    until(lambda: all(is_idle(engine.target) for engine in engines))


def test_a_worker_that_ends_finishes_what_runs(deployment: Deployment) -> None:
    engines = deployment.engine(), deployment.engine()
    ending, _ = (deployment.worker(engine) for engine in engines)
    text = expected(deployment.url)
    all_asked = crowd(deployment.url)
    until(lambda: all(engine.load().running > 0 for engine in engines))
    ending.process.send_signal(signal.SIGTERM)
    assert {text_of(asked.wait()) for asked in all_asked} == {text}
    assert ending.process.wait(PATIENCE_SECONDS) == 0, ending.log()
    assert len(deployment.instances()) == 1


def test_a_worker_that_has_to_end_hands_over_what_runs(deployment: Deployment) -> None:
    engines = deployment.engine(), deployment.engine()
    ending, _ = (
        deployment.worker(engine, "--shutdown-timeout", "0", "--grace-period", "0") for engine in engines
    )
    text = expected(deployment.url)
    all_asked = crowd(deployment.url)
    until(lambda: all(engine.load().running > 0 for engine in engines))
    ending.process.send_signal(signal.SIGTERM)
    assert {text_of(asked.wait()) for asked in all_asked} == {text}
    assert ending.process.wait(PATIENCE_SECONDS) == 0, ending.log()
    until(lambda: all(is_idle(engine.target) for engine in engines))


def test_an_engine_that_drains_is_left_and_comes_back(deployment: Deployment) -> None:
    draining, other = deployment.engine(*TORCH, "--shutdown-timeout", "0"), deployment.engine()
    for engine in (draining, other):
        deployment.worker(engine)
    text = expected(deployment.url)
    all_asked = crowd(deployment.url)
    until(lambda: draining.load().running > 0)
    draining.process.send_signal(signal.SIGTERM)
    assert {text_of(asked.wait()) for asked in all_asked} == {text}
    until(lambda: len(deployment.instances()) == 1)
    path = draining.target.removeprefix("unix:")
    again = deployment.program_again(draining, path)
    until(lambda: len(deployment.instances()) == 2)
    until(lambda: text_of(complete(deployment.url, **LONG)) == text and again.load().requests_finished > 0)


def test_a_full_queue_sends_a_request_elsewhere(deployment: Deployment) -> None:
    full = deployment.engine(*TORCH, "--max-num-seqs", "1", "--max-num-queued-reqs", "1")
    deployment.worker(full)
    text = expected(deployment.url)
    deployment.worker(deployment.engine())
    assert {text_of(asked.wait()) for asked in crowd(deployment.url)} == {text}


def test_a_full_queue_is_told_when_there_is_nobody_else(deployment: Deployment) -> None:
    deployment.worker(deployment.engine(*TORCH, "--max-num-seqs", "1", "--max-num-queued-reqs", "1"))
    codes = [asked.wait().status_code for asked in crowd(deployment.url)]
    assert set(codes) == {200, 503}


def test_a_worker_ends_with_an_engine_that_is_not_the_same_any_more(deployment: Deployment) -> None:
    engine = deployment.engine()
    worker = deployment.worker(engine)
    engine.process.kill()
    until(lambda: deployment.instances() == [])
    deployment.program_again(engine, engine.target.removeprefix("unix:"), "--max-num-seqs", "3")
    assert worker.process.wait(PATIENCE_SECONDS) == 1
    assert "another configuration" in worker.log()
