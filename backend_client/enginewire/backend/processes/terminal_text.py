"""Text of models and of other programs, as it may be written to a terminal.

Sans-IO. Knows nothing about where the text comes from.
"""

from __future__ import annotations

import unicodedata
from typing import Final

LAYOUT: Final = "\n\t"


def harmless(text: str) -> str:
    """The same with control characters spelled out, which could steer a terminal, save line ends and tabs."""
    return "".join(char.encode("unicode_escape").decode("ascii") if _steers(char) else char for char in text)


def _steers(char: str) -> bool:
    # Not `isprintable`: emoji hold together by joiners that it does not know.
    return char not in LAYOUT and unicodedata.category(char) == "Cc"
