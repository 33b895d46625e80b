"""A call as an object of JSON: `{"name": …, "arguments": {…}}`, in text that arrives in pieces.

Arguments are passed on as they come, once the name is known. Knows nothing about what is around the object.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Final

from enginewire.backend.parsing.json_value import JsonValue
from enginewire.backend.parsing.pieces import CallArguments, CallBegin, Piece

NAME: Final = "name"
ARGUMENTS: Final = ("arguments", "parameters")
NO_ARGUMENTS: Final = "{}"


class NotACall(ValueError):
    """The text is something else; `raw` is all of it that has not become pieces."""

    def __init__(self, raw: str) -> None:
        super().__init__("not a call")
        self.raw = raw


class CallObject:
    """One object. `is_call` says which names there are."""

    def __init__(self, is_call: Callable[[str], bool]) -> None:
        self._is_call = is_call
        self._read: Callable[[], bool] = self._open
        self._waiting = ""
        # All that came until a call has begun: it may turn out to be plain text.
        self._raw = ""
        self._key = ""
        self._value = JsonValue()
        self._name: str | None = None
        self._early: list[str] = []
        self._has_arguments = False
        self._pieces: list[Piece] = []
        self._is_over = False

    def feed(self, text: str) -> tuple[list[Piece], str | None]:
        """Pieces, and what is behind the object; None while it goes on. Raises NotACall."""
        self._waiting += text
        if self._name is None:
            self._raw += text
        try:
            while not self._is_over and self._waiting and self._read():
                pass
        except ValueError:
            # A call that has begun cannot be taken back: what is behind it is something else.
            if self._name is None:
                raise NotACall(self._raw) from None
            self._is_over = True
        pieces, self._pieces = self._pieces, []
        if not self._is_over:
            return pieces, None
        rest, self._waiting = self._waiting, ""
        return pieces, rest

    def finish(self) -> list[Piece]:
        """The text has ended inside of the object. Raises NotACall."""
        if self._name is None:
            raise NotACall(self._raw)
        return []

    def _open(self) -> bool:
        return self._skip("{", self._begin_key)

    def _begin_key(self) -> bool:
        self._waiting = self._waiting.lstrip()
        if self._waiting.startswith("}"):
            self._end()
        elif self._waiting:
            expect(self._waiting[0] == '"')
            self._value, self._read = JsonValue(), self._read_key
        return bool(self._waiting)

    def _read_key(self) -> bool:
        if not self._consume():
            return False
        key = self._decoded()
        expect(isinstance(key, str))
        self._key, self._read = str(key), self._colon
        return True

    def _colon(self) -> bool:
        return self._skip(":", self._begin_value)

    def _begin_value(self) -> bool:
        self._waiting = self._waiting.lstrip()
        if not self._waiting:
            return False
        is_streamed = self._key in ARGUMENTS and self._waiting[0] == "{" and not self._has_arguments
        self._value = JsonValue(keeps_text=not is_streamed)
        self._read = self._read_arguments if is_streamed else self._read_value
        return True

    def _read_arguments(self) -> bool:
        self._has_arguments = True
        mine, rest = self._value.feed(self._waiting)
        self._argue(mine)
        self._waiting = rest or ""
        if rest is not None:
            self._read = self._comma
        return bool(self._waiting)

    def _read_value(self) -> bool:
        if not self._consume():
            return False
        value = self._decoded()
        if self._key == NAME and self._name is None:
            expect(isinstance(value, str) and self._is_call(value))
            self._begin(str(value))
        elif self._key in ARGUMENTS and not self._has_arguments:
            self._has_arguments = True
            # Some models write the object as a string, or null for none.
            self._argue(value if isinstance(value, str) else NO_ARGUMENTS if value is None else self._text())
        self._read = self._comma
        return True

    def _comma(self) -> bool:
        self._waiting = self._waiting.lstrip()
        if self._waiting.startswith("}"):
            self._end()
            return False
        return self._skip(",", self._begin_key)

    def _end(self) -> None:
        self._waiting = self._waiting[1:]
        self._is_over = True
        expect(self._name is not None)
        if not self._has_arguments:
            self._argue(NO_ARGUMENTS)

    def _begin(self, name: str) -> None:
        self._name = name
        self._raw = ""
        self._pieces += [CallBegin(name), *map(CallArguments, self._early)]
        self._early.clear()

    def _argue(self, text: str) -> None:
        if self._name is None:
            self._early.append(text)
        elif text:
            self._pieces.append(CallArguments(text))

    def _skip(self, mark: str, then: Callable[[], bool]) -> bool:
        self._waiting = self._waiting.lstrip()
        if not self._waiting:
            return False
        expect(self._waiting[0] == mark)
        self._waiting, self._read = self._waiting[1:], then
        return bool(self._waiting)

    def _consume(self) -> bool:
        _, rest = self._value.feed(self._waiting)
        self._waiting = rest or ""
        return rest is not None

    def _text(self) -> str:
        return "".join(self._value.text or ())

    def _decoded(self) -> object:
        try:
            return json.loads(self._text())
        except RecursionError as error:
            raise ValueError("nested too deeply") from error


def expect(is_right: bool) -> None:
    """Raise ValueError for an object that cannot be read."""
    if not is_right:
        raise ValueError("not the object of a call")
