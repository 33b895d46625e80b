"""A guide that is short and quick to compile may still be too slow to follow: then it is refused before."""

from __future__ import annotations

import pytest

from enginewire.server.engines.guides.schema import InvalidGuide
from enginewire.torch_engine.guided import speed
from enginewire.torch_engine.guided.library import Library, Vocabulary
from enginewire.torch_engine.guided.matcher import GuidedMatcher
from enginewire.torch_engine.guided.open_library import open_library
from enginewire.torch_engine.guided.speed import check_speed
from enginewire.torch_engine.guided.worker import COMPILED, REFUSED, answer

RUNS = [letter * length for letter in (b"a", b"b", b" ") for length in range(2, 40)]
"""Tokens as a large vocabulary has them: one may end many groups of a repetition at once."""
TOKENS = (*(bytes([byte]) for byte in range(256)), *RUNS, b"")


VOCABULARY = Vocabulary(TOKENS, (len(TOKENS) - 1,))


@pytest.fixture(scope="module", params=["xgrammar", "llguidance"])
def library(request) -> Library:
    return open_library(request.param, VOCABULARY)


class Stuck:
    """A library that gives up at its second mask, as llguidance does when a lexer grows too large."""

    vocab_size = 64

    def __init__(self, num_masks: int) -> None:
        self._num_masks = num_masks

    def load(self, compiled: bytes) -> Stuck:
        return self

    def start(self, ending_ids: list[int]) -> Stuck:
        return self

    is_over = False

    def accept(self, token_id: int) -> bool:
        return token_id < 63

    def fill(self, masks: object, row: int) -> bool:
        self._num_masks -= 1
        return self._num_masks >= 0


def test_groups_of_any_length_in_any_number_are_refused():
    found = answer(open_library("xgrammar", VOCABULARY), "regex", "(a{1,30}){30}")
    assert found.startswith(REFUSED + b"too slow to follow")


def test_a_library_that_gives_up_on_the_way_has_refused():
    check_speed(Stuck(speed.TOKENS), b"")
    with pytest.raises(InvalidGuide, match="too slow"):
        check_speed(Stuck(speed.TOKENS - 1), b"")


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("regex", "([a-z]{1,30}-){30}"),
        ("regex", "a{1,900}"),
        ("regex", "(a{30}){30}"),
        ("regex", "[0-9]{1,3}([.][0-9]{1,3}){3}"),
        ("regex", "(ab?)*"),
        ("choice", '["a", "aa", "b"]'),
        ("json_schema", '{"type": "array", "items": {"enum": ["a", "aa", "b"]}, "maxItems": 50}'),
        ("json_object", ""),
        ("ebnf_grammar", 'root ::= root "a" | root "b" | "b"'),
        ("ebnf_grammar", 'root ::= x "a" | "c"\nx ::= root "b"'),
        ("ebnf_grammar", 'root ::= e root "a" | "b"\ne ::= "" | "x"'),
        ("ebnf_grammar", 'root ::= root "+" term | term\nterm ::= [0-9]+ | "(" root ")"'),
    ],
)
def test_what_has_one_meaning_is_quick_whatever_its_size(library, kind, text):
    assert answer(library, kind, text).startswith(COMPILED)


def test_a_match_that_may_be_empty_is_walked_all_the_same(monkeypatch):
    library = open_library("xgrammar", VOCABULARY)
    compiled = library.compile("regex", "((a{1,30}){30})?")
    with pytest.raises(InvalidGuide, match="too slow"):
        check_speed(library, compiled)
    monkeypatch.setattr(speed, "SECONDS_AT_START", 100.0)
    check_speed(library, compiled)


class Quick:
    """A matcher that allows everything at once."""

    is_over = False

    def accept(self, token_id: int) -> bool:
        return True

    def fill(self, masks: object, row: int) -> bool:
        return True


def test_whatever_used_up_the_time_of_a_grammar_each_call_says_so():
    assert GuidedMatcher(Quick(), 0.0).fill(None, 0)
    assert GuidedMatcher(Quick(), 0.0).accept(3)
    assert not GuidedMatcher(Quick(), -1.0).fill(None, 0)
    assert not GuidedMatcher(Quick(), -1.0).accept(3)
