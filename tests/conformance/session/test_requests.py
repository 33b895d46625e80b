from __future__ import annotations

import pytest

from enginewire.conformance.session.requests import num_alike, prompt


@pytest.mark.parametrize("vocab_size", [32, 64, 128, 150_000])
def test_prompts_of_different_salts_do_not_begin_alike(vocab_size: int) -> None:
    block = 16
    begins = [tuple(prompt(4 * block, vocab_size, salt=salt)[:block]) for salt in range(300)]
    assert len(set(begins)) == len(begins)


def test_a_prompt_is_the_same_again_and_begins_like_a_shorter_one() -> None:
    assert prompt(100, 64, salt=3) == prompt(100, 64, salt=3)
    assert prompt(100, 64, salt=3)[:8] == prompt(8, 64, salt=3)


def test_no_id_comes_twice_before_all_came_once() -> None:
    ids = prompt(62, 32, avoid=[2])
    assert sorted(ids[:31]) == sorted(ids[31:]) == [token for token in range(32) if token != 2]


def test_a_vocabulary_of_which_nothing_may_be_used_is_used_all_the_same() -> None:
    assert sorted(prompt(2, 2, avoid=[0, 1])) == [0, 1]
    assert prompt(3, 0) == [0, 0, 0]


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ([1, 2, 3], [1, 2, 4], 2),
        ([1, 2], [1, 2, 4], 2),
        ([1, 2], [1, 2], 2),
        ([5, 2], [1, 2], 0),
        ([], [1], 0),
    ],
)
def test_prompts_are_alike_up_to_the_first_token_that_differs(
    one: list[int], other: list[int], expected: int
) -> None:
    assert num_alike(one, other) == expected
