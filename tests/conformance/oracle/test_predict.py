from __future__ import annotations

import pytest

from enginewire import v1 as pb
from enginewire.conformance.oracle.case import Case
from enginewire.conformance.oracle.predict import Ending, certain, ending, is_possible
from enginewire.conformance.session.context import Greedy
from tests.conformance.oracle.cases import OFFER, RUNS, drawn

TOKENS = [10, 11, 12, 13, 14, 11, 15, 16]
RUN = Greedy([9], TOKENS)
EOS, STOP, LENGTH = pb.FINISH_REASON_EOS, pb.FINISH_REASON_STOP, pb.FINISH_REASON_LENGTH


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        (Case(max_tokens=3), Ending(3, LENGTH)),
        (Case(max_tokens=3, eos_token_ids=(12,)), Ending(3, EOS)),
        (Case(max_tokens=8, eos_token_ids=(12,), ignore_eos=True), Ending(8, LENGTH)),
        (Case(max_tokens=8, stop_token_ids_hidden=(13,), ignore_eos=True), Ending(8, LENGTH)),
        (Case(max_tokens=8, stop_token_ids=(13,), ignore_eos=True), Ending(4, STOP, 13)),
        (Case(max_tokens=8, stop_token_ids_visible=(14, 13)), Ending(4, STOP, 13)),
        (Case(max_tokens=8, stop_token_ids_hidden=(13,), stop_token_ids_visible=(13,)), Ending(4, EOS)),
        (Case(max_tokens=8, stop_token_ids=(11,), min_tokens=2), Ending(2, STOP, 11)),
        (Case(max_tokens=8, stop_token_ids=(11,), min_tokens=3), Ending(6, STOP, 11)),
        (Case(max_tokens=5, stop_token_ids=(11,), min_tokens=3), Ending(5, LENGTH)),
        (Case(max_tokens=8, eos_token_ids=(11,), min_tokens=3, stop_token_ids=(12,)), Ending(3, STOP, 12)),
    ],
)
def test_a_choice_ends_as_the_table_of_the_contract_says(case: Case, expected: Ending) -> None:
    assert ending(case, TOKENS, [2]) == expected


def test_ids_of_the_engine_hold_where_the_request_has_none() -> None:
    assert ending(Case(max_tokens=8), TOKENS, [12]) == Ending(3, EOS)
    assert ending(Case(max_tokens=8, stop_token_ids_hidden=(15,)), TOKENS, [12]) == Ending(3, EOS)
    assert ending(Case(max_tokens=8, eos_token_ids=(15,)), TOKENS, [12]) == Ending(7, EOS)


def test_tokens_that_end_nothing_have_no_ending() -> None:
    assert ending(Case(max_tokens=9), TOKENS, [2]) is None


def test_below_min_tokens_a_stop_id_makes_what_follows_uncertain() -> None:
    assert certain(Case(max_tokens=8, stop_token_ids=(12,), min_tokens=5), TOKENS, [2]) == 2
    assert certain(Case(max_tokens=8, stop_token_ids=(12,), min_tokens=3), TOKENS, [2]) == 8


def test_a_cut_is_not_behind_the_end() -> None:
    stopped = Case(max_tokens=8, stop_token_ids=(12,))
    assert [cut for cut in range(5) if is_possible(stopped.changed("resumed", (cut,)), RUN, [2])] == [1, 2, 3]
    assert not is_possible(stopped.changed("resumed", (3,)), RUN, [2], may_be_over=False)


def test_a_finished_choice_has_all_its_tokens_and_another_one_goes_on() -> None:
    done = Case(max_tokens=8, stop_token_ids=(12,), n=2, resumed=(3,), finished=(0,))
    assert done.live == [1]
    assert is_possible(done, RUN, [2])
    assert not is_possible(done.changed("n", 1), RUN, [2])
    assert not is_possible(done.changed("resumed", (4,)), RUN, [2])
    assert not is_possible(done.changed("finished", (1,)), RUN, [2])


def brute(case: Case, tokens: list[int]) -> tuple[int, str, int | None]:
    """Another way to the same end: every reason with its place, and the earliest one wins."""
    systems = set(case.stop_token_ids_hidden) | set(case.eos_token_ids or (2,))
    callers = set(case.stop_token_ids) | set(case.stop_token_ids_visible)
    late = [place for place in range(len(tokens)) if place + 1 >= max(case.min_tokens, 1)]
    found = [(case.max_tokens, 2, "LENGTH", None)]
    found += [
        (place + 1, 0, "EOS", None) for place in late if tokens[place] in systems and not case.ignore_eos
    ]
    found += [(place + 1, 1, "STOP", tokens[place]) for place in late if tokens[place] in callers]
    count, _, reason, token = min(found, key=lambda each: each[:2])
    return count, reason, token


def test_drawn_cases_end_as_a_search_for_the_earliest_reason_says() -> None:
    for case in drawn(500):
        tokens = RUNS[case.prompt].tokens
        told = ending(case, tokens, OFFER.eos_token_ids)
        assert told is not None
        name = pb.FinishReason.Name(told.reason).removeprefix("FINISH_REASON_")
        assert (told.count, name, told.token) == brute(case, tokens), case.described
