from __future__ import annotations

from dataclasses import replace

import pytest

from enginewire.conformance.client_side.oracle.case import Case
from enginewire.conformance.client_side.oracle.draw import draw
from enginewire.conformance.client_side.oracle.possible import is_possible
from enginewire.conformance.client_side.oracle.predict import predict
from enginewire.conformance.client_side.stage.alphabet import EOS, EOS_TEXT, TURN, TURN_TEXT, Piece, ids


def said(*pieces: Piece, end: str = "LENGTH", **options: object) -> Case:
    """A case of one choice, a token per output."""
    tokens = tuple(ids(*pieces))
    messages = tuple((0, 1) for _ in tokens)
    return Case(tokens=(tokens,), ends=(end,), messages=messages, **options)  # type: ignore[arg-type]  # fields


@pytest.mark.parametrize(
    ("case", "text", "reason", "stop", "counts"),
    [
        (said("abc"), "abc", "LENGTH", "", (3, 3)),
        (said("aaab", stop=("aab",)), "a", "STOP", "aab", (4, 4)),
        (said("abc", stop=("bc", "abc")), "", "STOP", "abc", (3, 3)),
        (said("abxx", stop=("ab", "abc")), "", "STOP", "ab", (2, 3)),
        (said("abc", stop=("ab", "abc")), "", "STOP", "abc", (3, 3)),
        (said("abcx", stop=("bc", "abcd")), "a", "STOP", "bc", (3, 4)),
        (said("ab", stop=("ab", "abc")), "", "STOP", "ab", (2, 2)),
        (said("abc", stop=("b",), include_stop_str_in_output=True), "ab", "STOP", "b", (2, 2)),
        (said("abab", stop=("b",), min_tokens=3), "aba", "STOP", "b", (4, 4)),
        (said("abab", stop=("ba",), min_tokens=3), "a", "STOP", "ba", (3, 3)),
        (said("ab", b"\xc3", stop=("\ufffd",)), "ab", "STOP", "\ufffd", (3, 3)),
        (said("日", stop=("日",)), "", "STOP", "日", (3, 3)),
        (said("a", TURN, "b", stop=("ab",)), "", "STOP", "ab", (3, 3)),
        (said("a", TURN, "b", stop=(TURN_TEXT,)), "a", "STOP", TURN_TEXT, (2, 2)),
        (said("a", TURN, stop=(f"a{TURN_TEXT}",)), "a", "LENGTH", "", (2, 2)),
        (said("a", TURN, stop=("a<",), skip_special_tokens=False), "", "STOP", "a<", (2, 2)),
        (said("ab", EOS, end="EOS", skip_special_tokens=False), "ab", "EOS", "", (3, 3)),
        (
            said("a", EOS, "b", ignore_eos=True, skip_special_tokens=False),
            f"a{EOS_TEXT}b",
            "LENGTH",
            "",
            (3, 3),
        ),
        (said("abZ", end="STOP", stop_token_ids=tuple(b"Z")), "ab", "STOP", "", (3, 3)),
        (said("abZ", end="STOP", stop_token_ids_visible=tuple(b"Z")), "abZ", "STOP", "", (3, 3)),
        (said("abZ", end="EOS", stop_token_ids_hidden=tuple(b"Z")), "ab", "EOS", "", (3, 3)),
        (said("abcde", max_tokens=3), "abc", "LENGTH", "", (3, 3)),
        (said("b", prompt=tuple(b"a"), stop=("ab",)), "b", "LENGTH", "", (1, 1)),
        (said(b"\xa9!", prompt=tuple(b"\xc3")), "é!", "LENGTH", "", (2, 2)),
        (said(" END and", spaced=True), " END and", "LENGTH", "", (1, 1)),
    ],
)
def test_a_choice_ends_as_the_contract_says(
    case: Case, text: str, reason: str, stop: str, counts: tuple[int, int]
) -> None:
    (due,) = predict(case)
    seen = (due.text, due.reason, due.stop, (due.least_count, due.count))
    assert seen == (text, reason, stop, counts)
    assert is_possible(case)


def test_a_failure_may_show_more_or_less() -> None:
    (due,) = predict(said("a", " STOP more", end="ERROR", stop=("STOP",)))
    assert (due.reason, due.least_text, due.text) == ("ERROR", "a", "a STOP more")


def test_what_is_decided_has_to_be_shown_with_its_token() -> None:
    (due,) = predict(said("1STx", stop=("STOP",)))
    assert due.shown == ("1", "1", "1", "1STx")


def test_the_end_does_not_depend_on_how_the_engine_cuts() -> None:
    for number in range(1, 100):
        case = draw(3, number)
        if case.ends[0] in ("ERROR", "CANCELLED", "CONTENT_FILTER"):
            continue
        whole = tuple((index, len(tokens)) for index, tokens in enumerate(case.tokens) if tokens)
        plain = {"lost": None, "gap": None, "repeat": None}
        at_once = replace(case, messages=whole, **plain)  # type: ignore[arg-type]  # fields
        ends = [(due.text, due.reason, due.stop, due.count) for due in predict(case)]
        assert [(due.text, due.reason, due.stop, due.count) for due in predict(at_once)] == ends


@pytest.mark.parametrize(
    "case",
    [
        said("aZb", end="LENGTH", stop_token_ids=tuple(b"Z")),
        said("ab", end="STOP"),
        said("ab", stop=("",)),
        said("ab", min_tokens=3, max_tokens=2),
        said("ab", waits=True),
        said("a", TURN, end="CANCELLED", stop=(TURN_TEXT,)),
        said("ab", lost=2),
        said("ab", lost=1, gap=1),
        said("ab", stop=("a",), gap=1),
        said("ab", repeat=0),
        said(b"\xff", "a", spaced=True),
        replace(said("ab"), messages=((0, 1),)),
    ],
)
def test_a_case_that_contradicts_itself_is_not_played(case: Case) -> None:
    assert not is_possible(case)
