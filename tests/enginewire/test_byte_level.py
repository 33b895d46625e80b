from __future__ import annotations

from tokenizers import pre_tokenizers

from enginewire.byte_level import BYTE_OF_CHARACTER, CHARACTER_OF_BYTE


def test_the_alphabet_is_that_of_the_tokenizers_library() -> None:
    split = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str
    codes = [*range(0x800), *range(0x800, 0xD800, 0x400), *range(0xE000, 0x110000, 0x1000)]
    text = "".join(map(chr, codes))
    ((written, _),) = split(text)
    assert "".join(CHARACTER_OF_BYTE[byte] for byte in text.encode()) == written
    assert set(BYTE_OF_CHARACTER) == set(pre_tokenizers.ByteLevel.alphabet())
    assert sorted(CHARACTER_OF_BYTE) == list(range(256))
