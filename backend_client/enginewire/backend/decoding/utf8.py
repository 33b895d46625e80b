"""UTF-8 that is still coming: which characters are there, and which bytes may still become one.

Knows nothing about tokens.
"""

from __future__ import annotations

import codecs


def decoded(data: bytes, errors: str = "replace") -> tuple[str, bytes]:
    """The text of `data`, and the bytes at its end that may still become a character, at most three.

    Bytes that cannot are U+FFFD, or raise UnicodeDecodeError with `errors` "strict".
    """
    text, consumed = codecs.utf_8_decode(data, errors, False)
    held = data[consumed:]
    if _begins_a_surrogate(held):
        return data.decode(errors=errors), b""
    return text, held


def ended(held: bytes) -> str:
    """What is shown of bytes that never became a character."""
    return held.decode(errors="replace")


def _begins_a_surrogate(held: bytes) -> bool:
    """Two bytes of what is no character whatever comes, and for which `codecs` waits for a third one."""
    return held[:1] == b"\xed" and held[1:] >= b"\xa0"
