"""What steps cost, by method; when requests begin."""

from __future__ import annotations

import pytest

from enginewire.torch_engine.requests.scheduled import Scheduled
from enginewire.torch_engine.runner.statistics import STEP_TOKENS, BatchStatistics
from tests.torch_engine.scheduling.scheduling import make_request
from tests.torch_engine.tiny import greedy

PROMPT = [5, 9, 33, 7, 100, 12]


class Clock:
    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def statistics(clock: Clock) -> BatchStatistics:
    return BatchStatistics(clock)


def grant(num_tokens: int) -> Scheduled:
    return Scheduled(make_request(8, 4).sequences[0], num_tokens, ())


def test_a_step_is_cut_into_its_parts(statistics, clock):
    stopwatch = statistics.begin([grant(1), grant(1)])
    clock.now += 4
    stopwatch.forwarded()
    clock.now += 2
    stopwatch.sampled()
    clock.now += 1
    stopwatch.succeeded()
    decode = statistics.methods["decode"]
    parts = (decode.forward.sum, decode.sampling.sum, decode.update.sum, decode.whole.sum)
    assert parts == (4, 2, 1, 7)
    assert (decode.num_succeeded, decode.num_failed) == (1, 0)
    assert statistics.methods["prefill"].whole.count == 0
    assert statistics.num_tokens.sum == 2


def test_one_sequence_with_several_tokens_makes_it_a_prefill(statistics):
    statistics.begin([grant(1), grant(5)]).succeeded()
    assert statistics.methods["prefill"].num_succeeded == 1
    assert statistics.methods["decode"].num_succeeded == 0


def test_a_step_that_failed_has_no_duration(statistics, clock):
    stopwatch = statistics.begin([grant(2)])
    clock.now += 4
    stopwatch.failed()
    prefill = statistics.methods["prefill"]
    assert (prefill.num_failed, prefill.num_succeeded, prefill.whole.count) == (1, 0, 0)


def test_a_request_begins_once(statistics, clock):
    granted = grant(4)
    statistics.begin([granted])
    clock.now += 1
    statistics.begin([granted])
    assert granted.sequence.request.context.running_since == 50.0


def test_step_sizes_have_vllm_s_bounds():
    assert STEP_TOKENS[:4] == (1, 8, 16, 32)
    assert STEP_TOKENS[-1] == 16384


def test_the_core_times_every_batch_and_forgets_its_warm_up(load):
    engine = load("llama")
    assert engine.core.statistics.num_tokens.count == 0
    context = engine.add(greedy(PROMPT, 4))
    engine.run()
    statistics = engine.core.statistics
    assert statistics.methods["prefill"].num_succeeded == 1
    assert statistics.methods["decode"].num_succeeded == 3
    assert statistics.num_tokens.sum == len(PROMPT) + 3
    assert context.running_since is not None


def test_a_failing_batch_is_counted_and_then_each_of_its_sequences(load):
    engine = load("llama")
    whole = engine.core._runner.forward

    def forward(batch: list[Scheduled], unread: object) -> object:
        if len(batch) > 1:
            raise RuntimeError("together they are too much")
        return whole(batch, unread)

    engine.core._runner.forward = forward
    engine.add(greedy(PROMPT, 1))
    engine.add(greedy(PROMPT[::-1], 1))
    engine.run()
    prefill = engine.core.statistics.methods["prefill"]
    assert (prefill.num_failed, prefill.num_succeeded) == (1, 2)
