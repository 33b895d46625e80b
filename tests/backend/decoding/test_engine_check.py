"""With `validate_engine_decode`: what an engine says of its tokens, compared with what they are."""

from __future__ import annotations

import pytest

from enginewire import v1 as pb
from enginewire.backend.decoding.engine_check import FINISH_REASON, TEXT
from enginewire.backend.decoding.request_decoder import RequestDecoder
from enginewire.backend.decoding.stop_conditions import StopConditions
from enginewire.backend.decoding.vocabulary import Vocabulary
from tests.backend.decoding import toy_tokenizers as toy

BYTE_LEVEL = toy.byte_level()
VOCABULARY = Vocabulary(BYTE_LEVEL)
EVALUATES = pb.Capabilities(stop_strings=True)
EOS, STOP, LENGTH = pb.FINISH_REASON_EOS, pb.FINISH_REASON_STOP, pb.FINISH_REASON_LENGTH


def spell(text: str) -> list[int]:
    """One id per character."""
    return [BYTE_LEVEL.token_to_id(character) for character in text]


def checking(
    capabilities: pb.Capabilities | None = None, *, is_guided: bool = False, **conditions: object
) -> RequestDecoder:
    decoder = RequestDecoder(
        VOCABULARY,
        StopConditions(**conditions),  # type: ignore[arg-type]  # it checks its own fields
        validate_engine_decode=True,
        is_guided=is_guided,
    )
    decoder.meet(capabilities or pb.Capabilities())
    return decoder


def said(spelled: str, position: int, text: str | None = None, reason: int = 0) -> pb.LLMEngineOutput:
    return pb.LLMEngineOutput(
        token_ids=spell(spelled),
        first_output_position=position,
        text=text,
        finish_reason=reason,  # type: ignore[arg-type]  # an int is one of them
    )


def found(decoder: RequestDecoder, *messages: pb.LLMEngineOutput) -> set[str]:
    """The kinds of differences."""
    for message in messages:
        decoder.process(message)
    return set(decoder.differences)


@pytest.mark.parametrize(
    ("texts", "kinds"),
    [
        (["a", "bc"], set()),
        (["abc", ""], set()),
        (["", "abc"], set()),
        (["a", "x"], {TEXT}),
        (["ab", ""], {TEXT}),
        (["ab", "c, and more"], {TEXT}),
        ([None, None], set()),
        (["ab", None], {TEXT}),
    ],
)
def test_text_of_the_engine_is_compared_wherever_it_is_cut(texts: list[str | None], kinds: set[str]) -> None:
    assert found(checking(), said("ab", 0, texts[0]), said("c", 2, texts[1], LENGTH)) == kinds


def test_our_own_text_is_shown_and_differences_do_not_quote_it() -> None:
    decoder = checking(EVALUATES)
    output = decoder.process(said("ab", 0, "xy"))
    assert output is not None
    assert output.text == "ab"
    assert decoder.differences == {TEXT: "is not what its token ids say, within its first 2 tokens"}


def test_an_engine_that_was_given_no_stop_strings_is_not_blamed_for_them() -> None:
    assert found(checking(stop=("bc",)), said("abc", 0, "abc")) == set()


def test_an_engine_that_was_given_the_stop_strings_has_to_cut_there() -> None:
    assert found(checking(EVALUATES, stop=("bc",)), said("abc", 0, "a", STOP)) == set()
    assert found(checking(EVALUATES, stop=("bc",)), said("abc", 0, "abc", STOP)) == {TEXT}
    assert found(checking(EVALUATES, stop=("bc",)), said("abc", 0, "a")) == {FINISH_REASON}


@pytest.mark.parametrize(
    ("ids", "reason", "kinds"),
    [
        ("ab", LENGTH, set()),
        ("abc", LENGTH, set()),
        ("abc", STOP, {FINISH_REASON}),
        ("abc", 0, {FINISH_REASON}),
        ("z", EOS, set()),
        ("z", STOP, {FINISH_REASON}),
        ("y", STOP, set()),
        ("a", EOS, {FINISH_REASON}),
        ("a", pb.FINISH_REASON_ERROR, set()),
        ("z", pb.FINISH_REASON_CANCELLED, set()),
        ("a", pb.FINISH_REASON_CONTENT_FILTER, set()),
    ],
)
def test_the_reason_of_the_engine_is_compared_with_that_of_its_ids(
    ids: str, reason: int, kinds: set[str]
) -> None:
    decoder = checking(
        max_tokens=3, eos_token_ids=frozenset(spell("z")), stop_token_ids=frozenset(spell("y"))
    )
    assert found(decoder, said(ids, 0, None, reason)) == kinds


def test_a_grammar_may_end_a_choice_without_an_id_that_does() -> None:
    assert found(checking(is_guided=True), said("a", 0, None, EOS)) == set()
    assert found(checking(is_guided=True), said("a", 0, None, STOP)) == {FINISH_REASON}


def test_hidden_ids_have_no_text_in_the_comparison() -> None:
    conditions = {"eos_token_ids": frozenset(spell("z")), "min_tokens": 2}
    assert found(checking(**conditions), said("z", 0, ""), said("az", 1, "a", EOS)) == set()
    assert found(checking(**conditions), said("z", 0, "z"), said("az", 1, "a", EOS)) == {TEXT}


def test_rows_between_outputs_count() -> None:
    decoder = checking(max_tokens=4)
    for position, character in enumerate("ab"):
        decoder.process_tokens(0, position, spell(character))
    assert found(decoder, said("cd", 2, None, LENGTH)) == set()


@pytest.mark.parametrize("resumed", [False, True])
def test_text_is_compared_behind_a_resume(resumed: bool) -> None:
    ids = BYTE_LEVEL.encode("🙈").ids
    decoder = checking()
    if resumed:
        decoder.go_on(pb.Resume(choices=[pb.ResumedChoice(index=0, generated_token_ids=ids[:-1])]))
    else:
        decoder.process(pb.LLMEngineOutput(token_ids=ids[:-1], text=""))
        decoder.resume()
    decoder.meet(EVALUATES)
    last = pb.LLMEngineOutput(
        token_ids=ids[-1:], first_output_position=len(ids) - 1, text="🙈", finish_reason=LENGTH
    )
    assert found(decoder, last) == set()
    assert sum(len(choice.token_ids) for choice in decoder.choices) == len(ids)
