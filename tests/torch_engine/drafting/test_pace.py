"""Drafts are as long as they pay."""

from __future__ import annotations

from itertools import count

import pytest

from enginewire.torch_engine.loading.drafting import row_cost
from enginewire.torch_engine.scheduling.drafting.pace import FIRST_REST, Pace


def pace_after(row_cost: float, *drafts: tuple[int, int]) -> Pace:
    pace = Pace(row_cost)
    for drafted, right in drafts:
        pace.note(drafted, right)
    return pace


def test_right_drafts_become_as_long_as_they_may():
    assert pace_after(0.1, *[(4, 4)] * 20).length(16, 1) == 16
    assert pace_after(0.1, *[(4, 4)] * 20).length(3, 1) == 3


def test_wrong_drafts_end_and_come_back_when_one_token_was_right():
    pace = pace_after(0.1, *[(3, 0)] * 12)
    rests = next(i for i in count() if pace.length(8, 1))
    assert rests + 1 >= FIRST_REST
    for _ in range(10):
        pace.note(1, 1)
    assert pace.length(8, 1) > 3


def test_each_try_that_fails_doubles_the_rest():
    pace = pace_after(0.1, *[(3, 0)] * 12)
    waits = []
    for _ in range(3):
        waits.append(next(i for i in count(1) if pace.length(8, 1)))
        pace.note(1, 0)
    assert waits[1] == waits[0] * 2
    assert waits[2] == waits[0] * 4


def test_the_larger_the_batch_the_shorter_the_draft():
    pace = pace_after(0.1, *[(4, 3)] * 20)
    lengths = [pace.length(16, size) for size in (1, 2, 4, 8, 16, 64, 1000)]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] > 4
    assert lengths[-1] == 0


def test_where_rows_cost_all_of_a_step_nothing_is_ever_tried():
    pace = pace_after(3.1, *[(3, 0)] * 3)
    assert not any(pace.length(8, 1) for _ in range(5000))


@pytest.mark.parametrize("chance", [0.2, 0.5, 0.9])
def test_the_next_token_pays_by_the_chance_that_all_before_it_are_right(chance):
    # After many drafts of one token the pace knows the chance; a row costs as much as in a step of 0.1 more.
    pace = Pace(0.1)
    pace._right, pace._wrong = chance, 1 - chance
    length = pace.length(100, 1)
    share = 0.1 / 1.1
    assert chance**length > share >= chance ** (length + 1)


def test_what_a_row_costs_is_the_slope_beside_the_rest_of_the_step():
    assert row_cost(11.0, 19.0, 8) == pytest.approx(0.1)
    assert row_cost(10.0, 9.0, 8) == 0.0  # a slower first one says nothing
    assert row_cost(1.0, 100.0, 3) >= 1000  # the rest of the step takes no time at all
