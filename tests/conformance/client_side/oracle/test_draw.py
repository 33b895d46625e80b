from __future__ import annotations

from collections import Counter
from dataclasses import fields

import pytest

from enginewire.conformance.client_side.oracle.case import Case, from_json
from enginewire.conformance.client_side.oracle.draw import draw
from enginewire.conformance.client_side.oracle.possible import is_possible
from enginewire.conformance.client_side.oracle.predict import predict
from enginewire.conformance.client_side.oracle.shrink import smaller


def drawn(count: int, seed: int = 1) -> list[Case]:
    return [draw(seed, number) for number in range(1, count + 1)]


def test_a_seed_draws_the_same_cases_again() -> None:
    assert drawn(30, seed=7) == drawn(30, seed=7)
    assert drawn(30, seed=7) != drawn(30, seed=8)


def test_every_option_and_every_end_is_drawn() -> None:
    cases = drawn(400)
    counted = Counter(name for case in cases for name in case.options)
    assert {each.name for each in fields(Case)} == set(counted)
    assert min(counted.values()) > 2
    ends = Counter((due.reason, bool(due.stop)) for case in cases for due in predict(case))
    assert len(ends) == 7
    assert {case.n for case in cases} == {1, 2, 3}


def test_every_drawn_case_may_be_played_and_is_read_back() -> None:
    for case in drawn(100):
        assert is_possible(case)
        assert from_json(case.as_json()) == case


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"tokens": 1}', '{"no": "such field"}'])
def test_what_is_no_case_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"case|Expecting"):
        from_json(text)


def test_smaller_cases_are_smaller_and_keep_their_tokens_and_outputs_together() -> None:
    for case in drawn(20):
        for other in smaller(case):
            assert other != case
            counts = [
                sum(size for index, size in other.messages if index == place) for place in range(other.n)
            ]
            assert counts == [len(tokens) for tokens in other.tokens]
