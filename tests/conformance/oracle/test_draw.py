from __future__ import annotations

from collections import Counter
from dataclasses import fields, replace

from enginewire.conformance.oracle.case import LISTS, Case
from enginewire.conformance.oracle.draw import MANY, Offer
from enginewire.conformance.oracle.predict import ending, is_possible
from tests.conformance.oracle.cases import OFFER, RUNS, drawn


def test_a_seed_draws_the_same_cases_again() -> None:
    assert drawn(40, seed=7) == drawn(40, seed=7)
    assert drawn(40, seed=7) != drawn(40, seed=8)


def test_a_case_is_the_same_however_many_are_drawn() -> None:
    assert drawn(100)[:10] == drawn(10)


def test_every_option_is_drawn_often() -> None:
    counted = Counter(name for case in drawn(500) for name in case.options)
    # What is asked for beyond the window is for cases that fill it.
    assert {each.name for each in fields(Case)} - {"beyond"} == set(counted)
    assert min(counted.values()) > 50


def test_every_end_is_drawn_often() -> None:
    ends = [ending(case, RUNS[case.prompt].tokens, OFFER.eos_token_ids) for case in drawn(500)]
    counted = Counter(end.reason for end in ends if end)
    assert len(counted) == 3
    assert min(counted.values()) > 50


def test_lists_with_more_ids_than_some_engines_keep_are_drawn() -> None:
    longest = [max(len(getattr(case, name)) for name in LISTS) for case in drawn(200)]
    assert sum(length > MANY - 1 for length in longest) > 20


def test_every_drawn_case_may_be_sent() -> None:
    for case in drawn(500):
        assert is_possible(case, RUNS[case.prompt], OFFER.eos_token_ids), case.described


def test_only_what_is_offered_is_drawn() -> None:
    least = Offer(vocab_size=100, most_stop_ids=3, most_choices=1, resume=False, multiplexed=False)
    for case in drawn(200, offer=least):
        assert not {"n", "resumed", "multiplexed"} & set(case.options)
        assert all(len(getattr(case, name)) <= 3 for name in LISTS)


def test_no_ids_are_drawn_where_none_are_allowed() -> None:
    for case in drawn(50, offer=replace(OFFER, most_stop_ids=0)):
        assert not set(LISTS) & set(case.options)
