"""Counts by bucket."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from enginewire.metrics.histogram import TOKENS, Histogram


@given(st.lists(st.tuples(st.floats(0, 1e6), st.integers(1, 5))))
def test_counts_are_those_of_counting_one_by_one(values: list[tuple[float, int]]) -> None:
    histogram = Histogram((1.0, 10.0, 100.0))
    for value, times in values:
        histogram.observe(value, times)
    single = [value for value, times in values for _ in range(times)]
    at_most = [sum(value <= bound for value in single) for bound in histogram.bounds]
    assert histogram.cumulative() == [*at_most, len(single)]
    assert histogram.count == len(single)
    assert [count for _, count in histogram.buckets()] == histogram.cumulative()
    assert histogram.sum == pytest.approx(sum(single))


def test_bounds_of_lengths_are_the_steps_people_know() -> None:
    assert TOKENS[:7] == (1, 2, 5, 10, 20, 50, 100)
    assert list(TOKENS) == sorted(TOKENS)


def test_bounds_are_written_as_prometheus_reads_them() -> None:
    assert Histogram((0.5, 10.0)).buckets() == [("0.5", 0.0), ("10.0", 0.0), ("+Inf", 0.0)]
