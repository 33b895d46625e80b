"""Engines that send text: who evaluates what ends it, and whose text is shown."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, seed, strategies as st

from enginewire import v1 as pb
from enginewire.backend.decoding.annotated import BackendOutput
from enginewire.backend.decoding.decoder import Decoder
from enginewire.backend.decoding.protocol_violation import ProtocolViolation
from enginewire.backend.decoding.request_decoder import RequestDecoder
from enginewire.backend.decoding.stop_conditions import StopConditions
from enginewire.backend.decoding.vocabulary import Vocabulary
from tests.backend.decoding import toy_tokenizers as toy

BYTE_LEVEL = toy.byte_level()
VOCABULARY = Vocabulary(BYTE_LEVEL)
EVALUATES = pb.Capabilities(stop_strings=True)
LENGTH = pb.FINISH_REASON_LENGTH


def spell(text: str) -> list[int]:
    """One id per character."""
    return [BYTE_LEVEL.token_to_id(character) for character in text]


def decoder_of(
    capabilities: pb.Capabilities, n: int = 1, *, with_tokens: bool = False, **conditions: object
) -> RequestDecoder:
    decoder = RequestDecoder(
        VOCABULARY,
        StopConditions(**conditions),  # type: ignore[arg-type]  # it checks its own fields
        num_choices=n,
        with_tokens=with_tokens,
    )
    decoder.meet(capabilities)
    return decoder


def said(spelled: str, position: int, text: str | None, **fields: object) -> pb.LLMEngineOutput:
    return pb.LLMEngineOutput(
        token_ids=spell(spelled),
        first_output_position=position,
        text=text,
        **fields,  # type: ignore[arg-type]  # the message checks its own fields
    )


def taken(decoder: RequestDecoder, *messages: pb.LLMEngineOutput) -> list[BackendOutput]:
    outputs = [decoder.process(message) for message in messages]
    return [output for output in outputs if output is not None]


def shown(outputs: Sequence[BackendOutput]) -> str:
    return "".join(output.text for output in outputs)


@pytest.mark.parametrize(
    ("conditions", "text", "reason", "num_tokens"),
    [
        ({"stop": ("cd",)}, "ab", pb.FINISH_REASON_STOP, 4),
        ({"stop": ("cd",), "include_stop_str_in_output": True}, "abcd", pb.FINISH_REASON_STOP, 4),
        ({"stop": ("cd",), "min_tokens": 5}, "abcde", LENGTH, 5),
        ({"stop": ("b",), "stop_token_ids": frozenset(spell("a"))}, "", pb.FINISH_REASON_STOP, 1),
        ({"max_tokens": 3}, "abc", LENGTH, 3),
    ],
)
def test_text_of_an_engine_that_evaluates_no_stops_is_not_what_is_shown(
    conditions: dict[str, object], text: str, reason: int, num_tokens: int
) -> None:
    decoder = decoder_of(pb.Capabilities(), **conditions)
    pieces = [said(each, place, each.upper()) for place, each in enumerate("abcd")]
    outputs = taken(decoder, *pieces, said("e", 4, "E", finish_reason=LENGTH))
    assert (shown(outputs), outputs[-1].finish_reason) == (text, reason)
    assert sum(len(output.token_ids) for output in outputs) == num_tokens


def test_text_and_end_of_an_engine_that_evaluates_stops_are_passed_through() -> None:
    decoder = decoder_of(EVALUATES, stop=("XY", "b"))
    match = pb.StopMatch(text="XY")
    outputs = taken(
        decoder,
        said("ab", 0, "own ", tokens=["o", "wn "]),
        said("b", 2, ""),
        said("", 3, "text", finish_reason=pb.FINISH_REASON_STOP, stop_match=match),
    )
    assert [output.text for output in outputs] == ["own ", "", "text"]
    assert (outputs[0].tokens, outputs[2].stop_reason) == (["o", "wn "], "XY")
    assert not decoder.needs_abort


def test_an_engine_that_could_evaluate_stops_and_sends_no_text_gets_ours() -> None:
    decoder = decoder_of(EVALUATES, stop=("cd",))
    outputs = taken(decoder, said("abc", 0, None), said("de", 3, "cde"))
    assert (shown(outputs), outputs[-1].stop_reason, decoder.needs_abort) == ("ab", "cd", True)


def test_each_choice_is_decided_by_its_own_first_tokens() -> None:
    decoder = decoder_of(EVALUATES, n=2, stop=("b",))
    [first] = taken(decoder, said("ab", 0, "AB"))
    [second] = taken(decoder, said("ab", 0, None, index=1))
    assert (first.text, first.finish_reason) == ("AB", pb.FINISH_REASON_UNSPECIFIED)
    assert (second.text, second.stop_reason) == ("a", "b")


def test_text_for_each_token_is_made_here_where_the_engine_sends_none() -> None:
    decoder = decoder_of(EVALUATES, with_tokens=True)
    assert taken(decoder, said("ab", 0, "AB"))[0].tokens == ["a", "b"]


@pytest.mark.parametrize("position", [0, 1])
def test_tokens_without_text_behind_text_break_the_contract(position: int) -> None:
    decoder = decoder_of(EVALUATES)
    taken(decoder, said("a", 0, "A"))
    with pytest.raises(ProtocolViolation):
        decoder.process_tokens(0, position, spell("b"))
    with pytest.raises(ProtocolViolation, match="without text"):
        decoder.process(said("b", 1, None))


def test_text_without_tokens_breaks_the_contract() -> None:
    for capabilities in (EVALUATES, pb.Capabilities()):
        with pytest.raises(ProtocolViolation, match="without tokens"):
            decoder_of(capabilities).process(said("", 0, "text"))


@pytest.mark.parametrize(
    "messages",
    [
        [said("abcde", 0, "abcde")],
        [said("ab", 0, "ab"), said("cde", 2, "cde")],
        [said("abc", 0, "abc"), said("de", 3, "de")],
        # What it had withheld is due where it ends.
        [said("ab", 0, "a"), said("c", 2, ""), said("de", 3, "bcde", finish_reason=LENGTH)],
    ],
)
def test_max_tokens_holds_against_an_engine_that_makes_its_text(messages: list[pb.LLMEngineOutput]) -> None:
    decoder = decoder_of(EVALUATES, max_tokens=3)
    outputs = taken(decoder, *messages)
    assert (shown(outputs), outputs[-1].finish_reason) == ("abc", LENGTH)
    assert [token_id for output in outputs for token_id in output.token_ids] == spell("abc")
    assert decoder.num_passed_on == 3


def test_an_overrun_whose_text_cannot_be_cut_is_a_violation() -> None:
    decoder = decoder_of(EVALUATES, max_tokens=3)
    taken(decoder, said("ab", 0, "something else"))
    with pytest.raises(ProtocolViolation, match=r"max_tokens \(3\)"):
        decoder.process(said("cd", 2, "!"))


def test_an_engine_may_send_what_it_withheld_behind_its_last_token() -> None:
    decoder = decoder_of(EVALUATES, stop=("cd",), max_tokens=3)
    outputs = taken(decoder, said("abc", 0, "ab"), said("", 3, "c", finish_reason=LENGTH))
    assert (shown(outputs), outputs[-1].finish_reason) == ("abc", LENGTH)


def test_an_answer_goes_on_with_our_text_whatever_the_next_engine_does() -> None:
    for capabilities in (EVALUATES, pb.Capabilities()):
        decoder = decoder_of(EVALUATES, n=2, stop=("cdc",))
        outputs = taken(decoder, said("abc", 0, "ab"))
        taken(decoder, said("a", 0, "a", index=1, finish_reason=pb.FINISH_REASON_EOS))
        assert decoder.take_over()
        resumed = decoder.resume()
        assert [list(each.generated_token_ids) for each in resumed] == [spell("abc"), spell("a")]
        decoder.meet(capabilities)
        outputs += taken(decoder, said("d", 3, ""), said("cc", 4, "", finish_reason=LENGTH))
        assert (shown(outputs), outputs[-1].stop_reason) == ("ab", "cdc")
        assert decoder.is_finished


def test_text_that_a_lost_engine_withheld_longer_than_we_would_comes_with_the_next_token() -> None:
    decoder = decoder_of(EVALUATES, stop=("cd",))
    taken(decoder, said("abc", 0, "a"))
    assert decoder.take_over()
    outputs = [decoder.process_tokens(0, 3 + place, spell(each)) for place, each in enumerate("ef")]
    assert [output and output.text for output in outputs] == ["bce", "f"]


def test_an_answer_whose_text_is_not_ours_cannot_go_on() -> None:
    for text in ("AB", "abc"):
        decoder = decoder_of(EVALUATES, stop=("cd",))
        taken(decoder, said("abc", 0, text))
        assert not decoder.take_over()
        assert decoder.num_passed_on == 3


def test_a_caller_s_resume_goes_on_with_our_text() -> None:
    decoder = decoder_of(EVALUATES, stop=("cd",))
    decoder.go_on(pb.Resume(choices=[pb.ResumedChoice(index=0, generated_token_ids=spell("abc"))]))
    outputs = taken(decoder, said("e", 3, "ce"))
    assert shown(outputs) == "ce"


@seed(12)
@given(
    text=st.text("abcd", min_size=1, max_size=12),
    stop=st.lists(st.text("abcd", min_size=1, max_size=3), max_size=2),
    min_tokens=st.integers(0, 4),
    is_visible=st.booleans(),
    cut=st.integers(0, 12),
    evaluates=st.booleans(),
)
def test_an_exact_engine_lost_anywhere_leaves_the_answer_as_it_would_have_been(
    text: str, stop: list[str], min_tokens: int, is_visible: bool, cut: int, evaluates: bool
) -> None:
    conditions = StopConditions(
        stop=tuple(stop), min_tokens=min_tokens, include_stop_str_in_output=is_visible
    )
    whole = Decoder(VOCABULARY, conditions).process(spell(text))
    lost, decoder = Decoder(VOCABULARY, conditions), RequestDecoder(VOCABULARY, conditions)
    decoder.meet(EVALUATES)
    outputs = []
    for place, character in enumerate(text[: min(cut, len(whole.token_ids) - 1)]):
        outputs += taken(decoder, said(character, place, lost.process(spell(character)).text))
    assert decoder.take_over()
    decoder.resume()
    decoder.meet(pb.Capabilities(stop_strings=evaluates))
    position = decoder.num_passed_on
    outputs += taken(decoder, said(text[position:], position, None))
    assert shown(outputs) == whole.text
    assert outputs[-1].stop_reason == (whole.stop_trigger and whole.stop_trigger.stop)
