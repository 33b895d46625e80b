"""Qwen 3 Coder: `<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>`.

Values are plain text: what they mean, the schema of the tool says.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Final

from enginewire.backend.parsing.call_object import NotACall
from enginewire.backend.parsing.hermes import CLOSING, OPENING, ClosingMarker
from enginewire.backend.parsing.marked_calls import MarkedCalls
from enginewire.backend.parsing.pieces import CallArguments, CallBegin, Piece

FUNCTION: Final = re.compile(r"\s*<function=([^<>\s]+)>")
PARAMETER: Final = re.compile(r"\s*<parameter=([^<>\s]+)>\n?(.*?)\n?</parameter>", re.DOTALL)
END: Final = re.compile(r"\s*</function>")
# What may come next: while it is only begun, more text is needed.
FUNCTION_BEGIN: Final = "<function="
PARAMETER_BEGIN: Final = "<parameter="
FUNCTION_END: Final = "</function>"


class QwenCoderBody:
    """One function with its parameters. See CallBody."""

    def __init__(self, schemas: Mapping[str, Mapping[str, object]]) -> None:
        self._schemas = schemas
        self._waiting = ""
        self._name: str | None = None
        self._num_parameters = 0
        self._closing: ClosingMarker | None = None

    def feed(self, text: str) -> tuple[list[Piece], str | None]:
        """See CallBody."""
        if self._closing is not None:
            return [], self._closing.feed(text)
        self._waiting += text
        pieces = [*self._begin(), *self._parameters()]
        end = END.match(self._waiting)
        if self._name is None or (end is None and may_become(self._waiting, PARAMETER_BEGIN, FUNCTION_END)):
            return pieces, None
        # Where the function's end is missing, text goes on behind what there is.
        self._closing = ClosingMarker(CLOSING)
        pieces.append(CallArguments("}" if self._num_parameters else "{}"))
        return pieces, self._closing.feed(self._waiting[end.end() if end else 0 :])

    def finish(self) -> list[Piece]:
        """See CallBody."""
        if self._name is None:
            raise NotACall(self._waiting)
        return []

    def _begin(self) -> Iterator[Piece]:
        if self._name is not None:
            return
        if found := FUNCTION.match(self._waiting):
            self._name = found[1]
            self._waiting = self._waiting[found.end() :]
            yield CallBegin(self._name)
        elif not may_become(self._waiting, FUNCTION_BEGIN):
            raise NotACall(self._waiting)

    def _parameters(self) -> Iterator[Piece]:
        while self._name is not None and (found := PARAMETER.match(self._waiting)):
            self._waiting = self._waiting[found.end() :]
            before = ", " if self._num_parameters else "{"
            self._num_parameters += 1
            value = json.dumps(meant(found[2], self._schema(found[1])), ensure_ascii=False)
            yield CallArguments(f"{before}{json.dumps(found[1], ensure_ascii=False)}: {value}")

    def _schema(self, key: str) -> object:
        properties = self._schemas.get(self._name or "", {}).get("properties")
        return properties.get(key) if isinstance(properties, dict) else None


def may_become(text: str, *beginnings: str) -> bool:
    """True while text begins with one of these, or may still come to it."""
    rest = text.lstrip()
    return any(each.startswith(rest) or rest.startswith(each) for each in beginnings)


def meant(text: str, schema: object) -> object:
    """The value of a parameter: text as it is where a text may be meant, else JSON if it is any."""
    types = types_of(schema)
    if "string" in types and not (text == "null" and "null" in types):
        return text
    if not types and not text.startswith(("{", "[")):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return {"True": True, "False": False, "None": None}.get(text, text)


def types_of(schema: object) -> set[object]:
    """The types that a schema names; none when it names none."""
    if not isinstance(schema, dict):
        return set()
    named = schema.get("type")
    types = set(named) if isinstance(named, list) else {named} if isinstance(named, str) else set()
    for key in ("anyOf", "oneOf"):
        alternatives = schema.get(key)
        for each in alternatives if isinstance(alternatives, list) else ():
            types |= types_of(each)
    return types


def qwen3_coder_calls(schemas: Mapping[str, Mapping[str, object]]) -> MarkedCalls:
    """A parser of this format."""
    return MarkedCalls(OPENING, lambda: QwenCoderBody(schemas))
