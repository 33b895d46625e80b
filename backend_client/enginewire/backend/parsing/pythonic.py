"""Llama 4 and others: `[first(a=1), second(b="x")]`, calls as Python writes them.

They are parsed, never run, and only when the answer is complete: before that a comma may change everything.
"""

from __future__ import annotations

import ast
import json
import warnings
from collections.abc import Callable
from typing import Final

from enginewire.backend.parsing.pieces import CallArguments, CallBegin, Piece, Text

# Constants as JSON spells them.
NAMES: Final = {"true": True, "false": False, "null": None}


class PythonicCalls:
    """An answer that is a list of calls, or else text. See PieceParser."""

    def __init__(self, is_call: Callable[[str], bool]) -> None:
        self._is_call = is_call
        self._waiting = ""
        self._is_text = False

    def feed(self, text: str) -> list[Piece]:
        """See PieceParser."""
        self._waiting += text
        rest = self._waiting.lstrip()
        self._is_text = self._is_text or bool(rest and rest[0] != "[")
        return self._flush() if self._is_text else []

    def finish(self) -> list[Piece]:
        """See PieceParser."""
        try:
            pieces = [piece for call in calls_of(self._waiting) for piece in self._pieces(call)]
        except (ValueError, RecursionError, MemoryError):
            pieces = []
        return pieces or self._flush()

    def _flush(self) -> list[Piece]:
        text, self._waiting = self._waiting, ""
        return [Text(text)] if text else []

    def _pieces(self, call: ast.expr) -> list[Piece]:
        """The pieces of one call. Raises ValueError."""
        if not isinstance(call, ast.Call) or call.args:
            raise ValueError("not a call with named arguments")
        name = ast.unparse(call.func)
        if not self._is_call(name):
            raise ValueError("no such tool")
        arguments = {str(each.arg): value_of(each.value) for each in call.keywords}
        return [CallBegin(name), CallArguments(json.dumps(arguments, ensure_ascii=False))]


def calls_of(text: str) -> list[ast.expr]:
    """The elements of a list. Raises ValueError."""
    with warnings.catch_warnings():
        # A model's backslashes are nobody's mistake.
        warnings.simplefilter("ignore")
        try:
            body = ast.parse(text.strip(), mode="eval").body
        except SyntaxError as error:
            raise ValueError("not Python") from error
    if not isinstance(body, ast.List):
        raise ValueError("not a list")
    return body.elts


def value_of(node: ast.expr) -> object:
    """A value that JSON has. Raises ValueError."""
    match node:
        case ast.Constant(value=None | bool() | int() | float() | str() as value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return -value
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            return [value_of(each) for each in elements]
        case ast.Dict(keys=keys, values=values):
            named = zip(keys, values, strict=True)
            return {str(value_of(key)): value_of(value) for key, value in named if key is not None}
        case ast.Name(id=name) if name in NAMES:
            return NAMES[name]
    raise ValueError("no value of JSON")
