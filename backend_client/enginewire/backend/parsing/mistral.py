"""Mistral: `[TOOL_CALLS]` and a list of objects; since its eleventh tokenizer `[TOOL_CALLS]name[ARGS]{…}`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from enginewire.backend.parsing.call_object import NotACall
from enginewire.backend.parsing.json_calls import JsonCalls
from enginewire.backend.parsing.json_value import JsonValue
from enginewire.backend.parsing.marked_calls import MarkedCalls
from enginewire.backend.parsing.pieces import CallArguments, CallBegin, Piece

OPENING: Final = "[TOOL_CALLS]"
HEAD: Final = re.compile(r"\s*([^\s{}\[\]]+)\s*(?:\[CALL_ID\]\s*\w*\s*)?(?:\[ARGS\]\s*)?(?=\{)")
MAX_HEAD_CHARACTERS: Final = 512


class MistralBody:
    """What is behind one marker. See CallBody."""

    def __init__(self, is_call: Callable[[str], bool]) -> None:
        self._is_call = is_call
        self._waiting = ""
        self._list: JsonCalls | None = None
        self._arguments: JsonValue | None = None

    def feed(self, text: str) -> tuple[list[Piece], str | None]:
        """See CallBody."""
        if self._list is not None:
            return self._list.feed(text), None
        if self._arguments is not None:
            mine, rest = self._arguments.feed(text)
            return [CallArguments(mine)], rest
        self._waiting += text
        return self._begin()

    def finish(self) -> list[Piece]:
        """See CallBody."""
        if self._list is not None:
            return self._list.finish()
        if self._arguments is None:
            raise NotACall(self._waiting)
        return []

    def _begin(self) -> tuple[list[Piece], str | None]:
        rest = self._waiting.lstrip()
        if rest.startswith(("[", "{")):
            # What turns out to be no list is text with its marker.
            self._list = JsonCalls(self._is_call, opening=OPENING)
            return self.feed(OPENING + self._waiting)
        if found := HEAD.match(self._waiting):
            self._arguments = JsonValue(keeps_text=False)
            pieces, behind = self.feed(self._waiting[found.end() :])
            return [CallBegin(found[1]), *pieces], behind
        if "{" in rest or len(rest) > MAX_HEAD_CHARACTERS:
            raise NotACall(self._waiting)
        return [], None


def mistral_calls(is_call: Callable[[str], bool]) -> MarkedCalls:
    """A parser of this format."""
    return MarkedCalls(OPENING, lambda: MistralBody(is_call))
