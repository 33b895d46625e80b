"""The text of the reference backend where stop strings wait for each other, and at its ends."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from enginewire import v1 as pb
from enginewire.conformance.client_side.reference.text import ReferenceChoice, Vocabulary
from enginewire.conformance.client_side.stage import alphabet
from enginewire.conformance.client_side.stage.alphabet import EOS, TURN, TURN_TEXT, Piece, ids

VOCABULARY = Vocabulary.parse(alphabet.files()["tokenizer.json"])


def answered(pieces: Sequence[Piece], finish: int = 0, **conditions: object) -> tuple[str, str, int]:
    """Text, matched stop and tokens of a choice that gets a token per output."""
    stops = pb.StopConditions(**conditions)  # type: ignore[arg-type]  # its fields
    request = pb.PreprocessedRequest(stop_conditions=stops)
    choice = ReferenceChoice(0, VOCABULARY, request, frozenset([EOS]))
    text = ""
    for token in ids(*pieces):
        if not choice.finish:
            text += choice.take(pb.LLMEngineOutput(token_ids=[token])).text
    if finish and not choice.finish:
        text += choice.take(pb.LLMEngineOutput(finish_reason=finish)).text  # type: ignore[arg-type]  # an enum
    return text, choice.match.stop if choice.match else "", len(choice.token_ids)


@pytest.mark.parametrize(
    ("pieces", "stops", "expected"),
    [
        (["abcd"], ["bc", "abcd"], ("", "abcd", 1)),
        (["a", "b", "c", "d"], ["bc", "abcd"], ("", "abcd", 4)),
        (["a", "b", "c", "x"], ["bc", "abcd"], ("a", "bc", 4)),
        (["a", "b"], ["ab", "abc"], ("", "ab", 2)),
        (["a", TURN], [TURN_TEXT, f"a{TURN_TEXT}", f"{TURN_TEXT}x"], ("a", TURN_TEXT, 2)),
        (["a", b"\xc3"], ["\ufffd"], ("a", "\ufffd", 2)),
    ],
)
def test_the_match_that_begins_first_wins_however_the_text_is_cut(
    pieces: list[Piece], stops: list[str], expected: tuple[str, str, int]
) -> None:
    assert answered(pieces, pb.FINISH_REASON_LENGTH, stop=stops) == expected


def test_max_tokens_shows_the_bytes_that_wait() -> None:
    assert answered(["a", b"\xc3"], max_tokens=2) == ("a\ufffd", "", 2)


def test_a_hidden_stop_id_of_the_system_has_no_text() -> None:
    hidden = list(b"Z")
    assert answered("abZ", pb.FINISH_REASON_EOS, stop_token_ids_hidden=hidden)[0] == "ab"
    assert answered("abZ", pb.FINISH_REASON_LENGTH, stop_token_ids_hidden=hidden, ignore_eos=True)[0] == "abZ"
