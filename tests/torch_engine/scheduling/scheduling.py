"""Requests for a scheduler without a model, and steps that only count."""

from __future__ import annotations

from itertools import count

from enginewire.server.engines.interface import GenerateContext
from enginewire.torch_engine.requests.cache_chain import chain_root
from enginewire.torch_engine.requests.params import SamplingParams, StopRules
from enginewire.torch_engine.requests.scheduled import Scheduled
from enginewire.torch_engine.requests.sequence import Request, Sequence
from enginewire.torch_engine.scheduling.scheduler import Scheduler

serials = count(1)


def make_request(
    num_prompt: int,
    max_tokens: int,
    n: int = 1,
    priority: int = 0,
    deadline: float | None = None,
    salt: str | None = None,
    first: int = 1,
) -> Request:
    """A prompt of `first`, 1, 1, …; without a `salt` it stays out of the prefix cache."""
    stop = StopRules(max_total_tokens=num_prompt + max_tokens)
    context = GenerateContext("r", deadline)
    urgency = (priority, 0.0, next(serials))
    root = None if salt is None else chain_root(salt)
    prompt = [first, *[1] * (num_prompt - 1)]
    request = Request(context, prompt, SamplingParams(seed=0), stop, urgency, cache_root=root)
    request.sequences = [Sequence(request, index) for index in range(n)]
    return request


def compute(scheduler: Scheduler, granted: list[Scheduled]) -> None:
    """What a model run does to the sequences."""
    for grant in granted:
        samples = grant.samples
        scheduler.advance(grant)
        if samples:
            grant.sequence.append(2)
            if grant.sequence.finish():
                scheduler.release(grant.sequence)


def run(scheduler: Scheduler) -> list[list[Scheduled]]:
    steps = []
    while scheduler.has_work:
        steps.append(scheduler.schedule())
        assert steps[-1], "a step with work must schedule something"
        compute(scheduler, steps[-1])
    return steps


def lengths(granted: list[Scheduled]) -> list[int]:
    return [grant.num_tokens for grant in granted]
