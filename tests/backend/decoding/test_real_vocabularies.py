"""Over a million tokens of real and trained vocabularies: our text against the library's, token by token."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import cache, partial

import pytest
from tokenizers.decoders import DecodeStream

from enginewire.backend.decoding.vocabulary import TableKind, Vocabulary
from tests.backend.decoding import real_tokenizers as reals
from tests.backend.decoding.real_tokenizers import Real, real
from tests.backend.decoding.toy_tokenizers import expected_text, prompt_text
from tests.long import long_but

TOKENIZERS: dict[str, Callable[[], Real]] = {
    "Tekken": reals.tekken,
    "Mistral, as Llama 2": lambda: real(reals.sentencepiece(1)),
    "Mistral, as Gemma": lambda: real(reals.sentencepiece(0)),
    "GPT-2": lambda: real(reals.gpt2_style()),
    "Llama 3": lambda: real(reals.llama3_style()),
    "Qwen": lambda: real(reals.qwen_style()),
    "byte-fallback BPE": lambda: real(reals.byte_fallback_bpe()),
    "byte-fallback Unigram": lambda: real(reals.byte_fallback_unigram()),
}
OTHERS: dict[str, Callable[[], Real]] = {
    "Unigram": lambda: real(reals.unigram()),
    "WordPiece": lambda: real(reals.word_piece()),
}
FEW = ("GPT-2", "Mistral, as Llama 2", "WordPiece")
"""One of each kind of table."""
BYTE_LEVEL = ("Tekken", "GPT-2", "Llama 3", "Qwen")
TEXT_TOKENS = 80_000
RANDOM_TOKENS = 60_000
OTHER_TOKENS = 8_000
PROMPTED_TOKENS = 20_000
CUTS = 4
LENGTHS = (1, 2, 3, 7, 24, 200)


@cache
def vocabulary_of(name: str) -> Vocabulary:
    return Vocabulary((TOKENIZERS | OTHERS)[name]().tokenizer)


def spoken(name: str, num_tokens: int, special: bool = False) -> Iterator[list[int]]:
    """Ids of texts of every kind in random order; in each a special or added token, if asked for."""
    found = (TOKENIZERS | OTHERS)[name]()
    draw = random.Random(name)
    samples = [line for text in reals.texts() for line in text.splitlines(keepends=True)]
    odd = [line for lines in reals.SAMPLES.values() for line in lines]
    added = list(found.tokenizer.get_added_tokens_decoder())
    while num_tokens > 0:
        text = "".join(draw.choices(samples, k=12) + draw.choices(odd, k=4) + draw.choices(samples, k=2))
        ids = found.encode(text)
        if special:
            ids.insert(draw.randrange(len(ids) + 1), draw.choice(added))
        num_tokens -= len(ids)
        yield ids


def drawn(name: str, num_tokens: int) -> Iterator[list[int]]:
    """Any ids, also of parts of characters, special, added and unknown."""
    draw = random.Random(name)
    tokenizer = (TOKENIZERS | OTHERS)[name]().tokenizer
    size = vocabulary_of(name).size
    added = list(tokenizer.get_added_tokens_decoder())
    fragments = [i for i in range(size) if "\ufffd" in vocabulary_of(name).token_text(i)] or added
    mixtures = [range(size), range(size + 3), fragments, [*fragments, *added, *range(0, size, 97)]]
    while num_tokens > 0:
        ids = draw.choices(draw.choice(mixtures), k=draw.choice(LENGTHS))
        num_tokens -= len(ids)
        yield ids


def ours(name: str, ids: list[int], skip: bool) -> str:
    stream = vocabulary_of(name).detokenizer(skip_special_tokens=skip)
    return "".join(stream.feed(ids)) + stream.flush()


def follow(name: str, ids: list[int], skip: bool, num_prompt: int = 0) -> None:
    """One stream beside the library's: never behind it, and the same wherever it speaks."""
    tokenizer = (TOKENIZERS | OTHERS)[name]().tokenizer
    prompt = ids[:num_prompt]
    stream, theirs = (
        vocabulary_of(name).detokenizer(skip_special_tokens=skip, prompt=prompt),
        DecodeStream(ids=prompt, skip_special_tokens=skip),
    )
    before = prompt_text(tokenizer, prompt, skip)
    # The library shows all of a prompt again that seems to end in no character.
    again = before if tokenizer.decode(prompt, skip_special_tokens=skip).endswith("\ufffd") else ""
    told, ahead, has_given_up = "", "", False
    for token_id in ids[num_prompt:]:
        ahead += stream.step(token_id)
        try:
            piece = None if has_given_up else theirs.step(tokenizer, token_id)
        except Exception as error:  # the library raises nothing less general
            if "Invalid prefix" not in str(error):
                raise
            # A hidden token lies within the bytes of a character. `decode` has the whole text.
            has_given_up = True
            continue
        if piece is None:
            continue
        piece, again = piece.removeprefix(again), ""
        assert ahead == piece, (name, len(told), token_id)
        told += piece
        ahead = ""
    assert before + told + ahead + stream.flush() == expected_text(tokenizer, ids, skip)


def test_it_is_a_million_tokens() -> None:
    assert len(TOKENIZERS) * (TEXT_TOKENS + RANDOM_TOKENS) >= 1_000_000


@pytest.mark.parametrize("name", long_but(FEW, TOKENIZERS))
def test_each_has_its_table(name: str) -> None:
    kind = TableKind.BYTE_LEVEL if name in BYTE_LEVEL else TableKind.BYTE_FALLBACK
    assert vocabulary_of(name).kind is kind


@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("name", long_but(FEW, TOKENIZERS))
def test_text_of_every_kind_appears_no_later_than_from_the_library(name: str, skip: bool) -> None:
    for ids in spoken(name, TEXT_TOKENS // 2, special=skip):
        follow(name, ids, skip)


@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("name", long_but(FEW, [*TOKENIZERS, *OTHERS]))
def test_an_answer_goes_on_behind_its_prompt_as_from_the_library(name: str, skip: bool) -> None:
    draw = random.Random(name)
    for ids in spoken(name, PROMPTED_TOKENS):
        for _ in range(CUTS):
            cut, end = sorted(draw.choices(range(len(ids) + 1), k=2))
            follow(name, ids[:end], skip, num_prompt=cut)


@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("name", long_but(FEW, [*TOKENIZERS, *OTHERS]))
def test_the_end_of_a_prompt_decides_as_the_whole_does(name: str, skip: bool) -> None:
    draw = random.Random(name)
    for ids in drawn(name, PROMPTED_TOKENS):
        cut = draw.randrange(len(ids) + 1)
        whole = vocabulary_of(name).detokenizer(skip_special_tokens=skip)
        whole.feed(ids[:cut])
        end = vocabulary_of(name).detokenizer(skip_special_tokens=skip, prompt=ids[:cut])
        assert [*end.feed(ids[cut:]), end.flush()] == [*whole.feed(ids[cut:]), whole.flush()]


@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("name", long_but(FEW, TOKENIZERS))
def test_any_ids_give_the_text_of_the_library(name: str, skip: bool) -> None:
    tokenizer = TOKENIZERS[name]().tokenizer
    decode = (
        partial(tokenizer.decode, skip_special_tokens=skip)
        if name in BYTE_LEVEL
        else partial(expected_text, tokenizer, skip=skip)
    )
    for ids in drawn(name, RANDOM_TOKENS // 2):
        assert ours(name, ids, skip) == decode(ids), ids


@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("name", OTHERS)
def test_other_decoders_are_asked(name: str, skip: bool) -> None:
    assert vocabulary_of(name).kind is TableKind.WINDOW
    tokenizer = OTHERS[name]().tokenizer
    for ids in [*spoken(name, OTHER_TOKENS // 2, special=True), *drawn(name, OTHER_TOKENS // 2)]:
        assert ours(name, ids, skip) == tokenizer.decode(ids, skip_special_tokens=skip), ids
