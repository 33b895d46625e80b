"""Prompt lookup against a search that is written down word by word."""

from __future__ import annotations

from random import Random

import pytest

from enginewire.torch_engine.scheduling.drafting.ngram import NgramFinder


def searched(text: list[int], shortest: int, longest: int, most: int) -> list[int]:
    """The last place where the longest possible end of the text stands once more."""
    for length in range(longest, shortest - 1, -1):
        for start in range(len(text) - length - 1, -1, -1):
            if text[start : start + length] == text[len(text) - length :]:
                copy = list(text)
                while len(copy) < len(text) + most:
                    copy.append(copy[start + length + len(copy) - len(text)])
                return copy[len(text) :]
    return []


@pytest.mark.parametrize(("shortest", "longest"), [(1, 1), (1, 4), (2, 3), (3, 3)])
def test_it_finds_what_a_plain_search_finds_while_the_text_grows(shortest, longest):
    random = Random(shortest * 10 + longest)
    num_found = 0
    for _ in range(30):
        finder, text = NgramFinder(shortest, longest), []
        for _ in range(40):
            text += [random.choice([0, 1, 2, 0xD800, 150_000]) for _ in range(random.randint(0, 3))]
            most = random.randint(0, 6)
            found = finder.find(text, most)
            assert found == (searched(text, shortest, longest, most) if text else [])
            num_found += bool(found)
    assert num_found > 100


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ([1, 2, 3, 9, 2, 3, 8, 7, 2, 3], [8, 7, 2, 3, 8]),  # the last of equal matches
        ([1, 2, 3, 9, 7, 2, 3, 8, 1, 2, 3], [9, 7, 2, 3, 8]),  # a longer one before a later one
        ([4, 5, 6, 5, 6], [5, 6, 5, 6, 5]),  # a period goes on
        ([1, 2, 3], []),
        ([7], []),
        ([], []),
    ],
)
def test_examples(text, found):
    assert NgramFinder(2, 3).find(text, 5) == found
