"""Gaps between tokens: counted by frame, each as if it were looked up by itself."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from enginewire.backend.activity.inter_token_latency import InterTokenLatency, TokenClock
from enginewire.metrics.histogram import Histogram

BOUNDS = (0.5, 1.0, 2.0)


@given(
    st.lists(st.dictionaries(st.integers(0, 3), st.integers(1, 2), max_size=4), max_size=12), st.booleans()
)
def test_gaps_are_those_of_looking_at_every_choice(frames: list[dict[int, int]], is_watched: bool) -> None:
    gaps, expected = InterTokenLatency(Histogram(BOUNDS)), Histogram(BOUNDS)
    clocks = [TokenClock(gaps) for _ in range(4)]
    last_at: dict[int, float] = {}
    for place, frame in enumerate(frames, 1):
        now = place * 0.75
        for choice, num_tokens in frame.items():
            assert clocks[choice].take(num_tokens, now) == (choice in last_at)
            if choice in last_at:
                expected.observe((now - last_at[choice]) / num_tokens, num_tokens)
            last_at[choice] = now
        if is_watched:
            assert gaps.histogram.counts == expected.counts
    assert gaps.histogram.counts == expected.counts
    assert gaps.histogram.sum == pytest.approx(expected.sum)
