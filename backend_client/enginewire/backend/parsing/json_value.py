"""Where a JSON value ends in text that arrives in pieces.

Looks at brackets and strings only: whether the value is valid is for its reader to say.
"""

from __future__ import annotations

import re
from typing import Final

# Everything that changes where we are.
TURNS: Final = re.compile(r'["\\{}\[\]]')
SCALAR_END: Final = re.compile(r"[\s,;\]}]")
OPENING: Final = "{["


class JsonValue:
    """One value. Its first character must not be white space."""

    __slots__ = ("_depth", "_in_string", "_is_escaped", "_is_scalar", "text")

    def __init__(self, *, keeps_text: bool = True) -> None:
        """`text` is everything that belongs to the value so far, unless nobody needs it."""
        self.text: list[str] | None = [] if keeps_text else None
        self._depth = 0
        self._in_string = False
        self._is_escaped = False
        self._is_scalar: bool | None = None

    def feed(self, text: str) -> tuple[str, str | None]:
        """What belongs to the value, and what is behind it; None while the value goes on."""
        if self._is_scalar is None and text:
            self._is_scalar = text[0] not in '{["'
        end = self._end_of_scalar(text) if self._is_scalar else self._end(text)
        mine = text if end is None else text[:end]
        if self.text is not None:
            self.text.append(mine)
        return mine, None if end is None else text[end:]

    def _end_of_scalar(self, text: str) -> int | None:
        found = SCALAR_END.search(text)
        return found.start() if found else None

    def _end(self, text: str) -> int | None:
        position = 0
        if self._is_escaped and text:
            self._is_escaped, position = False, 1
        while found := TURNS.search(text, position):
            position = found.end()
            mark = found[0]
            if mark == "\\":
                if self._in_string:
                    self._is_escaped = position == len(text)
                    position += 1
            elif mark == '"':
                self._in_string = not self._in_string
            elif not self._in_string:
                self._depth += 1 if mark in OPENING else -1
            if mark != "\\" and not self._in_string and self._depth <= 0:
                return position
        return None
