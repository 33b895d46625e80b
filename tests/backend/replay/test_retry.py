"""The table of retries, the back-off, the budget."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from enginewire import v1 as pb
from enginewire.backend.engines.failure import Failure
from enginewire.backend.replay.retry import RETRIES, Retry, RetryBudget, RetryPolicy


def failure(reason: pb.ErrorReason.ValueType, retryable: bool = True) -> Failure:
    return Failure(14, reason, "", retryable)


def test_every_reason_of_the_contract_is_decided() -> None:
    assert set(RETRIES) == set(pb.ErrorReason.values())


@pytest.mark.parametrize(
    "name", ["INVALID_REQUEST", "UNSUPPORTED", "AUTH", "CANCELLED", "DEADLINE_EXCEEDED", "SLOW_CONSUMER"]
)
def test_what_would_fail_again_is_never_retried(name: str) -> None:
    assert not RetryPolicy().allows(failure(pb.ErrorReason.Value(f"ERROR_REASON_{name}")), 1)


def test_a_lost_engine_is_retried_while_attempts_are_left() -> None:
    lost = failure(pb.ERROR_REASON_ENGINE_DEAD)
    assert [RetryPolicy().allows(lost, count) for count in range(1, 7)] == [True] * 4 + [False] * 2


def test_the_engines_word_that_a_retry_is_useless_stands() -> None:
    assert not RetryPolicy().allows(failure(pb.ERROR_REASON_ENGINE_DEAD, retryable=False), 1)


@given(st.integers(1, 200), st.none() | st.floats(0, 30))
def test_the_backoff_honours_the_engine_and_stays_bounded(
    num_attempts: int, retry_after: float | None
) -> None:
    policy = RetryPolicy()
    asked = retry_after or 0.0
    wait = policy.backoff(num_attempts, retry_after)
    assert asked + policy.shortest_backoff / 2 <= wait <= asked + policy.longest_backoff


def test_the_budget_ends_and_recovers_with_time_and_success() -> None:
    now = 0.0
    budget = RetryBudget(capacity=2, per_success=0.5, per_second=1, clock=lambda: now)
    assert [budget.take() for _ in range(3)] == [True, True, False]
    budget.succeed()
    assert not budget.take()
    budget.succeed()
    assert budget.take()
    now = 1.0
    assert [budget.take() for _ in range(2)] == [True, False]
    now = 100.0
    assert [budget.take() for _ in range(3)] == [True, True, False]


def test_a_refusal_and_a_loss_are_told_apart() -> None:
    assert RETRIES[pb.ERROR_REASON_QUEUE_FULL] is Retry.REFUSED
    assert RETRIES[pb.ERROR_REASON_STREAM_INCOMPLETE] is Retry.LOST
