import itertools

import pytest
from hypothesis import given, settings, strategies as st
from tokenizers import Tokenizer

from enginewire.backend.decoding.detokenizer import Detokenizer
from enginewire.backend.decoding.vocabulary import TableKind, Vocabulary
from enginewire.byte_level import CHARACTER_OF_BYTE
from tests.backend.decoding import toy_tokenizers as toy
from tests.long import examples

FAMILIES = toy.every_family()
VOCABULARIES = {name: Vocabulary(tokenizer) for name, tokenizer in FAMILIES.items()}
EXACT = [name for name, vocabulary in VOCABULARIES.items() if vocabulary.kind is not TableKind.BYTE_FALLBACK]
BYTES = [name for name in FAMILIES if name.startswith("byte") or name == "odd byte level"]
LLAMA = FAMILIES["byte fallback"]
SPOKEN = st.text(
    alphabet=st.sampled_from("ab theING.,\n日本é👩\u200d👧🇯🇵\ufffd\U0001f3fd<>|")
    | st.characters(codec="utf-8"),
    max_size=40,
)


def ids_of(name: str) -> st.SearchStrategy[list[int]]:
    """Some of them begin with spaces, which decoders take off."""
    spaces = [i for piece, i in FAMILIES[name].get_vocab().items() if piece.startswith(("▁", "Ġ"))] or [0]
    leading = st.lists(st.sampled_from(sorted(spaces)), max_size=4)
    return st.tuples(leading, st.lists(st.integers(0, VOCABULARIES[name].size + 3), max_size=30)).map(
        lambda parts: [*parts[0], *parts[1]]
    )


def stream(detokenizer: Detokenizer, ids: list[int]) -> list[str]:
    return [*(detokenizer.step(token_id) for token_id in ids), detokenizer.flush()]


def byte_ids(data: bytes, tokenizer: Tokenizer = LLAMA) -> list[int]:
    """One id per byte, in either spelling of a byte."""
    vocab = tokenizer.get_vocab()
    return [vocab.get(f"<0x{byte:02X}>") or vocab[CHARACTER_OF_BYTE[byte]] for byte in data]


@pytest.mark.hypothesis
@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("skip", [False, True])
def test_any_ids_give_what_decode_gives(name: str, skip: bool) -> None:
    @settings(max_examples=examples(80))
    @given(ids_of(name))
    def check(ids: list[int]) -> None:
        pieces = stream(VOCABULARIES[name].detokenizer(skip_special_tokens=skip), ids)
        assert "".join(pieces) == FAMILIES[name].decode(ids, skip_special_tokens=skip)

    check()


@pytest.mark.hypothesis
@pytest.mark.parametrize("name", FAMILIES)
def test_any_text_survives_encoding_and_streaming(name: str) -> None:
    @settings(max_examples=examples(80))
    @given(SPOKEN)
    def check(text: str) -> None:
        ids = FAMILIES[name].encode(text, add_special_tokens=False).ids
        pieces = stream(VOCABULARIES[name].detokenizer(), ids)
        assert "".join(pieces) == FAMILIES[name].decode(ids)
        assert pieces[-1] == "" or FAMILIES[name].decode(ids).endswith("\ufffd")

    check()


@pytest.mark.parametrize("name", BYTES)
def test_half_a_surrogate_is_shown_with_the_byte_that_decides_it(name: str) -> None:
    ids = byte_ids(b"\xed\xa0", FAMILIES[name])
    assert stream(VOCABULARIES[name].detokenizer(), ids) == ["", 2 * "\ufffd", ""]


@pytest.mark.hypothesis
@pytest.mark.parametrize("name", FAMILIES)
def test_feeding_a_chunk_equals_single_steps(name: str) -> None:
    @settings(max_examples=examples(60))
    @given(ids_of(name), ids_of(name))
    def check(first: list[int], second: list[int]) -> None:
        chunked = VOCABULARIES[name].detokenizer()
        stepped = VOCABULARIES[name].detokenizer()
        assert chunked.feed(first) + chunked.feed(second) == [stepped.step(i) for i in first + second]

    check()


@pytest.mark.parametrize("strip", [0, 1])
@given(data=st.data(), skip=st.booleans())
def test_byte_fallback_equals_decode_whenever_byte_runs_are_characters(
    strip: int, data: st.DataObject, skip: bool
) -> None:
    name = "byte fallback" if strip else "byte fallback, nothing stripped"
    tokenizer = FAMILIES[name]
    ordinary = st.integers(259, tokenizer.get_vocab_size() - 1).map(lambda token_id: [token_id])
    special = st.sampled_from([[1], [2]])
    character = st.characters(codec="utf-8").map(lambda text: byte_ids(text.encode()))
    ids = [*itertools.chain(*data.draw(st.lists(ordinary | special | character, max_size=20)))]
    detokenizer = VOCABULARIES[name].detokenizer(skip_special_tokens=skip)
    assert "".join(stream(detokenizer, ids)) == tokenizer.decode(ids, skip_special_tokens=skip)


@settings(max_examples=examples(300))
@given(ids_of("byte fallback") | st.binary(max_size=20).map(byte_ids), st.booleans())
def test_byte_fallback_keeps_what_was_shown_and_follows_decode_in_the_rest(
    ids: list[int], skip: bool
) -> None:
    detokenizer = VOCABULARIES["byte fallback"].detokenizer(skip_special_tokens=skip)
    assert "".join(stream(detokenizer, ids)) == toy.expected_text(LLAMA, ids, skip)


@given(st.binary(max_size=24))
def test_invalid_bytes_are_replaced_exactly_as_decode_does(data: bytes) -> None:
    tokenizer = toy.byte_level()
    ids = byte_ids(data, tokenizer)
    pieces = stream(VOCABULARIES["byte level"].detokenizer(), ids)
    assert "".join(pieces) == data.decode(errors="replace") == tokenizer.decode(ids)


@pytest.mark.parametrize("name", BYTES)
def test_a_character_appears_with_its_last_byte_and_not_before(name: str) -> None:
    tokenizer = FAMILIES[name]
    ids = byte_ids("🙈".encode(), tokenizer)
    detokenizer = VOCABULARIES[name].detokenizer()
    detokenizer.step(tokenizer.token_to_id("a"))
    assert [detokenizer.step(token_id) for token_id in ids] == ["", "", "", "🙈"]


@pytest.mark.parametrize("name", BYTES)
def test_flush_shows_bytes_that_never_complete(name: str) -> None:
    tokenizer = FAMILIES[name]
    ids = byte_ids("🙈".encode()[:3], tokenizer)
    detokenizer = VOCABULARIES[name].detokenizer()
    assert [detokenizer.step(token_id) for token_id in ids] == ["", "", ""]
    assert detokenizer.flush() == tokenizer.decode(ids)
    assert detokenizer.flush() == ""


@pytest.mark.parametrize("name", BYTES)
def test_a_long_run_of_invalid_bytes_is_shown_as_it_comes(name: str) -> None:
    tokenizer = FAMILIES[name]
    [bad] = byte_ids(b"\x80", tokenizer)
    detokenizer = VOCABULARIES[name].detokenizer()
    shown = 0
    for place in range(1, 2001):
        shown += len(detokenizer.step(bad))
        assert shown == place
    assert detokenizer.flush() == ""


def test_bytes_that_wait_for_others_are_no_rest() -> None:
    detokenizer = Vocabulary(toy.byte_fallback(1)).detokenizer()
    first, last = byte_ids("é".encode())
    [a] = LLAMA.encode("a", add_special_tokens=False).ids[-1:]
    assert not detokenizer.is_at_rest, "a space would be taken off"
    found = []
    for token_id in (a, first, last, first, a, last, last, a):
        detokenizer.step(token_id)
        found.append(detokenizer.is_at_rest)
    assert found == [True, False, True, False, True, False, False, True]


@pytest.mark.parametrize("name", BYTES)
@pytest.mark.parametrize("character", "é日🙈")
def test_a_character_that_the_prompt_begins_appears_when_it_is_complete(name: str, character: str) -> None:
    tokenizer = FAMILIES[name]
    ids = byte_ids(character.encode(), tokenizer)
    for cut in range(1, len(ids)):
        for before in ([], [tokenizer.token_to_id("a")], byte_ids("🙈".encode(), tokenizer)):
            detokenizer = VOCABULARIES[name].detokenizer(prompt=[*before, *ids[:cut]])
            assert stream(detokenizer, ids[cut:]) == [""] * (len(ids) - cut - 1) + [character, ""]
            detokenizer = VOCABULARIES[name].detokenizer(prompt=[*before, *ids[:cut]])
            assert detokenizer.flush() == tokenizer.decode(ids[:cut])


@pytest.mark.parametrize(
    ("tokenizer", "space"),
    [(toy.byte_fallback(3), "▁"), (toy.byte_fallback(20), "▁"), (toy.stripped_byte_level(3), "Ġ")],
)
def test_spaces_are_taken_off_the_beginning_of_a_prompt_only(tokenizer: Tokenizer, space: str) -> None:
    vocabulary = Vocabulary(tokenizer)
    a, blank = tokenizer.token_to_id("a"), tokenizer.token_to_id(space)
    for num_blanks in (0, 1, 2, 30):
        detokenizer = vocabulary.detokenizer(prompt=[a, *[blank] * num_blanks])
        assert detokenizer.feed([blank, a]) == [" ", "a"]
        begun = vocabulary.detokenizer(prompt=[blank] * num_blanks)
        assert (
            "".join(begun.feed([blank] * 30))
            == tokenizer.decode([blank] * (num_blanks + 30))[len(tokenizer.decode([blank] * num_blanks)) :]
        )
