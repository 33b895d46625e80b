"""The alphabet of byte-level vocabularies, GPT-2's: each byte is written as one printable character."""

from __future__ import annotations

from typing import Final

_PRINTABLE: Final = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_OTHERS: Final = [byte for byte in range(0x100) if byte not in _PRINTABLE]

BYTE_OF_CHARACTER: Final = {
    **{chr(byte): byte for byte in _PRINTABLE},
    **{chr(0x100 + place): byte for place, byte in enumerate(_OTHERS)},
}
"""A byte is its own Latin-1 character where that can be printed, or else the next from U+0100 on."""

CHARACTER_OF_BYTE: Final = {byte: character for character, byte in BYTE_OF_CHARACTER.items()}
