"""Bytes of UTF-8 as they come: nothing waits for what can never be a character."""

from __future__ import annotations

from itertools import product

import pytest

from enginewire.backend.decoding import utf8

# Whatever the last byte of a character is: one of each 64.
CHARACTERS = [chr(code).encode() for code in range(0, 0x110000, 64) if not 0xD800 <= code < 0xE000]
BEGINNINGS = {character[:size] for character in CHARACTERS for size in range(1, len(character))}
TAILS = (b"\x7f", b"\x80", b"\x9f", b"\xa0", b"\xbf", b"\xc3", b"\xed", b"\xf0")


def begun(data: bytes) -> bytes:
    return next((data[-size:] for size in (3, 2, 1) if data[-size:] in BEGINNINGS), b"")


@pytest.mark.parametrize("tail", [b"", *TAILS])
def test_only_what_begins_a_character_is_held(tail: bytes) -> None:
    for pair in product(range(256), repeat=2):
        data = bytes(pair) + tail
        held = begun(data)
        assert utf8.decoded(data) == (data[: len(data) - len(held)].decode(errors="replace"), held)


def test_what_is_no_character_is_an_error_for_who_is_strict() -> None:
    assert utf8.decoded("aé".encode()[:-1], "strict") == ("a", b"\xc3")
    for data in (b"\xff", b"a\xed\xa0", b"\xed\xbf"):
        with pytest.raises(UnicodeDecodeError):
            utf8.decoded(data, "strict")
