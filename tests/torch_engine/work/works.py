"""Live requests over a scheduler without a model, and steps whose rows a test writes."""

from __future__ import annotations

from collections.abc import Callable

from enginewire.server.engines.interface import GenerateContext
from enginewire.torch_engine.requests.params import SamplingParams, StopRules
from enginewire.torch_engine.requests.scheduled import Scheduled
from enginewire.torch_engine.requests.sequence import Request, Sequence
from enginewire.torch_engine.runner.statistics import Counters
from enginewire.torch_engine.sampling.sampler import Row
from enginewire.torch_engine.scheduling.block_pool import BlockPool
from enginewire.torch_engine.scheduling.scheduler import Scheduler
from enginewire.torch_engine.work.kinds import work_of
from enginewire.torch_engine.work.live import LiveRequests
from enginewire.torch_engine.work.outbox import CoreOutputs, Outbox


class Runner:
    """Only the half of it that hand-offs need: `kv` by the number of tokens."""

    def __init__(self, kv: dict[int, bytes] | None = None) -> None:
        self.kv = kv or {}

    def read_kv(self, sequence: Sequence, num_tokens: int) -> memoryview:
        return memoryview(self.kv[num_tokens])


class Closed:
    """A grammar that allows nothing."""

    is_over = is_too_slow = False

    def start(self, ending_ids: list[int]) -> Closed:
        return self

    def accept(self, token_id: int) -> bool:
        return False


class Works:
    """Requests that are alive."""

    def __init__(self, step_tokens: int = 64, runner: Runner | None = None) -> None:
        self.runner = runner or Runner()
        self.outbox = Outbox()
        self.scheduler = Scheduler(BlockPool(16, 4), 4, step_tokens)
        self.live = LiveRequests(self.scheduler, self.outbox, Counters())

    def add(self, request: Request) -> Request:
        request.work = work_of(request, self.live, self.runner)  # type: ignore[arg-type]  # half of one
        self.live.start(request)
        return request

    def step(self, row: Callable[[Scheduled], Row] | None = None) -> list[Scheduled]:
        granted = self.scheduler.schedule()
        for grant in granted:
            self.scheduler.advance(grant)
        for grant in granted if row else ():
            grant.sequence.request.work.take(grant, row(grant))
        return granted

    def said(self) -> CoreOutputs:
        return self.outbox.take(1)


def request_of(num_prompt: int, max_tokens: int, n: int = 1, **options: object) -> Request:
    """Options are fields of `Request`."""
    stop = StopRules(max_total_tokens=num_prompt + max_tokens)
    context = GenerateContext("r")
    request = Request(context, [7] * num_prompt, SamplingParams(seed=0), stop, (0, 0.0, 0), **options)  # type: ignore[arg-type]  # fields of any type
    request.sequences = [Sequence(request, index) for index in range(n)]
    return request
