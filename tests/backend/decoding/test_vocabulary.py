import pytest
from tokenizers import AddedToken, Tokenizer, decoders

from enginewire.backend.decoding.vocabulary import TableKind, Vocabulary
from tests.backend.decoding import toy_tokenizers as toy


@pytest.mark.parametrize(
    ("tokenizer", "kind"),
    [
        (toy.byte_level(), TableKind.BYTE_LEVEL),
        (toy.byte_fallback(), TableKind.BYTE_FALLBACK),
        (toy.byte_fallback(0), TableKind.BYTE_FALLBACK),
        (toy.word_piece(), TableKind.WINDOW),
        (toy.unigram(), TableKind.WINDOW),
        (toy.odd_byte_level(), TableKind.WINDOW),
    ],
)
def test_each_family_gets_its_table(tokenizer: Tokenizer, kind: TableKind) -> None:
    assert Vocabulary(tokenizer).kind is kind


def test_a_sequence_of_only_a_byte_level_decoder_gets_the_table() -> None:
    tokenizer = Tokenizer.from_str(toy.byte_level().to_str())
    tokenizer.decoder = decoders.Sequence([decoders.ByteLevel()])
    assert Vocabulary(tokenizer).kind is TableKind.BYTE_LEVEL


def test_a_table_that_disagrees_with_the_tokenizer_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "enginewire.backend.decoding.byte_level.BYTE_OF_CHARACTER", {chr(i): 65 for i in range(700)}
    )
    assert Vocabulary(toy.byte_level()).kind is TableKind.WINDOW


@pytest.mark.parametrize("wrong", ["<｜end▁of turn｜>", "an added token"])
def test_every_added_token_is_tried(wrong: str) -> None:
    class Misread(Vocabulary):
        def _exact_kind(self) -> TableKind:
            self._pieces[tokenizer.token_to_id(wrong)] = "what no tokenizer says"
            return super()._exact_kind()

    tokenizer = Tokenizer.from_str(toy.byte_level().to_str())
    tokenizer.add_tokens([f"filler {number}" for number in range(20_000)])
    assert Vocabulary(tokenizer).kind is TableKind.BYTE_LEVEL
    assert Misread(tokenizer).kind is TableKind.WINDOW


@pytest.mark.parametrize("strip", [0, 1])
def test_an_added_token_has_its_normalized_text(strip: int) -> None:
    tokenizer = Tokenizer.from_str(toy.byte_fallback(strip).to_str())
    tokenizer.add_tokens([AddedToken("<table>", normalized=True), AddedToken("<row>", normalized=False)])
    tokenizer.add_special_tokens(
        [AddedToken("<odd>", normalized=True), AddedToken("<end>", normalized=False)]
    )
    ids = [tokenizer.token_to_id(piece) for piece in ("a", "<table>", "<row>", "b", "<odd>", "c", "<end>")]
    assert Vocabulary(tokenizer).kind is TableKind.BYTE_FALLBACK
    for skip in (False, True):
        stream = Vocabulary(tokenizer).detokenizer(skip_special_tokens=skip)
        text = "".join(stream.feed(ids)) + stream.flush()
        assert text == tokenizer.decode(ids, skip_special_tokens=skip)
        assert text == "a <table><row>b <odd>c" + ("" if skip else "<end>")


def test_a_tokenizer_without_a_decoder_uses_the_window() -> None:
    tokenizer = Tokenizer.from_str(toy.word_piece().to_str())
    tokenizer.decoder = None
    vocabulary = Vocabulary(tokenizer)
    assert vocabulary.kind is TableKind.WINDOW
    ids = tokenizer.encode("the fox jumps").ids
    stream = vocabulary.detokenizer()
    assert "".join([*stream.feed(ids), stream.flush()]) == tokenizer.decode(ids)


def test_special_ids_are_known_by_their_text() -> None:
    assert Vocabulary(toy.byte_level()).special_ids == {text: i for i, text in enumerate(toy.SPECIAL)}


@pytest.mark.parametrize("name", toy.every_family())
def test_token_texts_of_ordinary_text_join_to_the_text(name: str) -> None:
    tokenizer = toy.every_family()[name]
    vocabulary = Vocabulary(tokenizer)
    ids = tokenizer.encode("the stream").ids
    joined = "".join(vocabulary.token_text(token_id) for token_id in ids)
    assert joined.removeprefix(" ") == tokenizer.decode(ids).removeprefix(" ")


def test_token_text_of_a_part_of_a_character_is_a_replacement_character() -> None:
    tokenizer = toy.byte_level()
    ids = tokenizer.encode("🙈").ids
    assert {Vocabulary(tokenizer).token_text(token_id) for token_id in ids} == {"\ufffd"}


def test_token_text_of_a_special_token_is_its_name_although_it_is_skipped() -> None:
    assert Vocabulary(toy.byte_level()).token_text(0) == "<|eos|>"


def test_token_text_of_an_unknown_id_is_empty() -> None:
    assert Vocabulary(toy.byte_level()).token_text(10_000) == ""


@pytest.mark.parametrize("name", toy.every_family())
def test_token_bytes_are_those_of_the_text_or_of_a_part_of_a_character(name: str) -> None:
    vocabulary = Vocabulary(toy.every_family()[name])
    for token_id in range(vocabulary.size):
        text = vocabulary.token_text(token_id)
        assert vocabulary.token_bytes(token_id).decode(errors="replace") == text
