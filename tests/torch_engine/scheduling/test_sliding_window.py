"""What a window leaves of a sequence, against a sequence whose tokens are looked at one by one."""

from __future__ import annotations

from hypothesis import given, strategies as st

from enginewire.torch_engine.scheduling.sliding_window import SlidingWindow

LONG = 80
windows = st.builds(SlidingWindow, st.integers(1, 20), st.integers(1, 9))


def held(window: SlidingWindow, computed: int, scheduled: int) -> int:
    """Blocks from the first that is needed to the last that a step writes."""
    return -(-(computed + scheduled) // window.block_size) - window.num_behind(computed)


@given(windows, st.integers(0, LONG))
def test_exactly_the_blocks_that_nobody_sees_and_that_are_no_parent_are_behind(window, computed):
    first_seen = max(computed + 1 - window.num_tokens, 0)
    unseen = [b for b in range(computed // window.block_size) if (b + 1) * window.block_size <= first_seen]
    parent = computed // window.block_size - 1
    assert window.num_behind(computed) == len([block for block in unseen if block != parent])


@given(windows, st.integers(1, 20))
def test_the_most_blocks_are_those_of_the_worst_place_in_a_long_sequence(window, scheduled):
    places = range(LONG)
    assert window.most_blocks(scheduled) == max(held(window, place, scheduled) for place in places)
