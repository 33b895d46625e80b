"""Which tokens the lists of a request forbid, and when they leave none."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from enginewire import v1 as pb
from enginewire.vllm_engine.answers.lists import Lists


def lists_of(allowed: Sequence[int] = (), *words: Sequence[int]) -> Lists:
    forbidden = [pb.TokenSequence(token_ids=word) for word in words]
    options = pb.SamplingOptions(allowed_token_ids=allowed, bad_words_token_ids=forbidden)
    lists = Lists.of(options)
    assert lists is not None
    return lists


def test_a_request_without_lists_has_none() -> None:
    assert Lists.of(pb.SamplingOptions()) is None


@pytest.mark.parametrize(
    ("output", "token_id", "is_forbidden"),
    [
        ([], 5, False),
        ([], 8, True),
        ([5, 6], 7, True),
        ([4, 5, 6], 7, True),
        ([6], 7, False),
        ([5, 6, 5], 7, False),
        ([5], 6, False),
    ],
)
def test_a_word_is_forbidden_whole_and_a_token_alone(output, token_id, is_forbidden) -> None:
    assert lists_of([4, 5, 6, 7], [5, 6, 7]).forbid(output, token_id) is is_forbidden


@pytest.mark.parametrize(
    ("allowed", "words", "is_nothing"),
    [
        ([5, 6], [[6], [5]], True),
        ([5, 6], [[6], [5, 5]], False),
        ([], [[6]], False),
        ([5], [], False),
    ],
)
def test_they_leave_no_first_token_when_each_that_is_allowed_is_a_word(allowed, words, is_nothing) -> None:
    assert lists_of(allowed, *words).leave_nothing is is_nothing


@pytest.mark.parametrize(("allowed", "name"), [([5], "allowed_token_ids"), ([], "bad_words_token_ids")])
def test_the_failure_names_the_list_that_forbids_most(allowed, name) -> None:
    assert lists_of(allowed, [5]).nothing_left().field == f"sampling_options.{name}"
