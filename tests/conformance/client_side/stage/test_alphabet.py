from __future__ import annotations

import hashlib

import pytest
from tokenizers import Tokenizer

from enginewire.conformance.client_side.stage import alphabet


def test_a_tokenizer_library_reads_what_the_kit_means() -> None:
    tokenizer = Tokenizer.from_buffer(alphabet.files()["tokenizer.json"])
    ids = alphabet.ids("hé ", "stream", b"\xf0\x9f\x99\x82", alphabet.TURN, alphabet.EOS)
    assert tokenizer.decode(ids) == "hé stream🙂"
    assert tokenizer.decode(ids, skip_special_tokens=False) == (
        f"hé stream🙂{alphabet.TURN_TEXT}{alphabet.EOS_TEXT}"
    )
    assert tokenizer.get_vocab_size() == alphabet.NUM_TOKENS < alphabet.UNKNOWN < alphabet.VOCAB_SIZE


def test_the_other_tokenizer_has_the_same_ids_and_leaves_out_the_first_space() -> None:
    tokenizer = Tokenizer.from_buffer(alphabet.files(strips_first_space=True)["tokenizer.json"])
    answer = alphabet.ids(" END and", b"\xf0\x9f\x99\x82", alphabet.TURN)
    assert tokenizer.decode(answer) == "END and🙂"
    assert tokenizer.decode([*alphabet.ids("hé"), *answer]) == "hé END and🙂"
    assert tokenizer.get_vocab_size() == alphabet.NUM_TOKENS


@pytest.mark.parametrize("strips_first_space", [False, True])
def test_the_manifest_describes_the_chunks(strips_first_space: bool) -> None:
    first, *chunks = alphabet.answers("", strips_first_space)
    described = {file.name: (file.size, file.sha256) for file in first.manifest.files}
    sent = {c.chunk.name: (len(c.chunk.data), hashlib.sha256(c.chunk.data).hexdigest()) for c in chunks}
    assert sent == described
    assert len(list(alphabet.answers(first.manifest.digest, strips_first_space))) == 1
