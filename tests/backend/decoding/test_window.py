"""The window by itself: as quick to show as a table, small, and clear about what cannot be decoded."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import cast

import pytest
from hypothesis import given, settings, strategies as st
from tokenizers import Tokenizer
from tokenizers.decoders import Decoder

from enginewire.backend.decoding.detokenizer import DecodeError
from enginewire.backend.decoding.vocabulary import Vocabulary, byte_rule, decoder_steps, num_stripped
from enginewire.backend.decoding.window import ROOM, WindowDetokenizer, WindowTable
from tests.backend.decoding import toy_tokenizers as toy
from tests.long import examples

TABLES = ["byte level", "byte fallback", "byte fallback, nothing stripped"]


def window_of(tokenizer: Tokenizer) -> WindowTable:
    """As the vocabulary makes it, also of a tokenizer that has a table."""
    steps = decoder_steps(tokenizer)
    pieces = {token_id: piece for piece, token_id in tokenizer.get_vocab().items()}
    pieces |= {token_id: token.content for token_id, token in tokenizer.get_added_tokens_decoder().items()}
    return WindowTable(tokenizer.decoder, pieces, byte_rule(steps), num_stripped(steps))


def byte_ids(data: bytes) -> list[int]:
    return [toy.byte_fallback().token_to_id(f"<0x{byte:02X}>") for byte in data]


@pytest.mark.hypothesis
@pytest.mark.parametrize("name", TABLES)
def test_each_token_shows_what_it_shows_through_a_table(name: str) -> None:
    tokenizer = toy.every_family()[name]
    vocabulary, window = Vocabulary(tokenizer), window_of(tokenizer)
    fragments = [i for i in range(vocabulary.size) if "\ufffd" in vocabulary.token_text(i)]
    ids = st.lists(st.integers(0, vocabulary.size + 3) | st.sampled_from(fragments), max_size=40)

    @settings(max_examples=examples(200))
    @given(ids, ids)
    def check(prompt: list[int], answer: list[int]) -> None:
        table = vocabulary.detokenizer(skip_special_tokens=False, prompt=prompt)
        asked = window.detokenizer(prompt)
        expected = [*table.feed(answer), table.flush()]
        assert [*asked.feed(answer), asked.flush()] == expected

    check()


def test_the_window_stays_small_whatever_the_ids() -> None:
    table = window_of(toy.odd_byte_level())
    stream = WindowDetokenizer(table)
    for place in range(3000):
        stream.step(place * 7919 % 420)
        assert len(stream._pieces) <= table.context + ROOM


def test_a_run_of_bytes_that_goes_wrong_keeps_what_was_shown() -> None:
    tokenizer = toy.byte_fallback()
    stream = window_of(tokenizer).detokenizer()
    shown = stream.feed([*byte_ids("日".encode() + b"\xff"), tokenizer.token_to_id("a")])
    assert shown == ["", "", "日", "\ufffd", "a"]


def test_each_character_of_a_run_of_byte_tokens_is_shown() -> None:
    shown = window_of(toy.byte_fallback()).detokenizer().feed(byte_ids("日é本🙈".encode()))
    assert [piece for piece in shown if piece] == ["日", "é", "本", "🙈"]


@pytest.mark.parametrize("strip", [3, 20, 40])
def test_spaces_are_taken_off_the_beginning_of_a_text_and_not_of_a_window(strip: int) -> None:
    tokenizer = toy.stripped_byte_level(strip)
    space = tokenizer.token_to_id("Ġ")
    stream = Vocabulary(tokenizer).detokenizer()
    assert stream.feed([space] * 60) == [""] * strip + [" "] * (60 - strip)


def test_a_panic_of_the_library_is_a_decode_error() -> None:
    tokenizer = toy.stripped_byte_level(1, 1)
    with pytest.raises(DecodeError, match=r"^decode error: "):
        Vocabulary(tokenizer).detokenizer().step(tokenizer.token_to_id("Ġ"))
    with pytest.raises(DecodeError, match=r"^decode error: "):
        Vocabulary(tokenizer).detokenizer(prompt=[tokenizer.token_to_id("Ġ")])


def test_a_token_that_cannot_be_decoded_alone_is_spelled() -> None:
    tokenizer = toy.stripped_byte_level(1, 1)
    assert Vocabulary(tokenizer).token_text(tokenizer.token_to_id("Ġ")) == "Ġ"


class Failing:
    """A decoder that raises."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def decode(self, tokens: Sequence[str]) -> str:
        """Never."""
        raise self._error


def failing(error: BaseException) -> WindowTable:
    return WindowTable(cast(Decoder, Failing(error)), {7: "a"})


def test_whatever_the_library_raises_is_a_decode_error() -> None:
    with pytest.raises(DecodeError, match=r"^decode error: out of tokens$"):
        failing(OSError("out of tokens")).detokenizer().step(7)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, asyncio.CancelledError, GeneratorExit])
def test_what_ends_a_program_or_a_task_passes(error: type[BaseException]) -> None:
    with pytest.raises(error):
        failing(error()).detokenizer().step(7)
