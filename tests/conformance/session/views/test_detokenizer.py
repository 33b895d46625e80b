from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest

from enginewire import v1 as pb
from enginewire.conformance.reference.server import Reference
from enginewire.conformance.session.views.detokenizer import parse


def test_byte_level_names_become_their_bytes() -> None:
    vocabulary = {"Ġhi": 0, "Ã": 1, "©": 2, "Ċ": 3}
    tokenizer = {"model": {"vocab": vocabulary}, "decoder": {"type": "ByteLevel"}}
    assert parse(tokenizer).text([0, 1, 2, 3]) == " hié\n"


def test_pieces_with_a_mark_for_a_space_become_text() -> None:
    vocabulary = {"▁hi": 0, "<0xC3>": 1, "<0xA9>": 2}
    tokenizer = {"model": {"vocab": vocabulary}, "decoder": {"type": "Replace", "pattern": "▁"}}
    assert parse(tokenizer).text([0, 1, 2]) == " hié"


def test_special_tokens_have_no_text_and_unknown_ids_neither() -> None:
    special = [{"id": 1, "content": "</s>", "special": True}, {"id": 2, "content": "<tool>"}]
    tokenizer = {"model": {"vocab": {"a": 0}}, "added_tokens": special, "decoder": {"type": "ByteLevel"}}
    assert parse(tokenizer).text([0, 1, 2, 99]) == "a<tool>"


def test_another_kind_of_tokenizer_is_not_guessed() -> None:
    with pytest.raises(ValueError, match="neither"):
        parse({"model": {"vocab": {"a": 0}}, "decoder": {"type": "WordPiece"}})


async def test_the_tokenizer_of_the_reference_says_what_its_tokens_read_like() -> None:
    reference = Reference()
    content = b"".join([piece.chunk.data async for piece in _pieces(reference)])
    ids = range(reference.config.vocab_size)
    assert parse(json.loads(content)).text(ids) == "".join(map(reference.token_text, ids))


def _pieces(reference: Reference) -> AsyncIterator[pb.GetTokenizerResponse]:
    return reference.tokenizer(pb.GetTokenizerRequest())
