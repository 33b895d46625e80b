"""How large a guide may be before a grammar library sees it.

Libraries unroll repetitions and recurse into nested groups: a text of twenty characters can stand for
a million symbols. Counts what a text stands for and does not parse it: what is not well-formed is left
for the library to refuse.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from enginewire.server.engines.guides.schema import InvalidGuide

MAX_CHARACTERS = 65_536
MAX_DEPTH = 64
"""Groups in groups, or values in values."""
MAX_SYMBOLS = 200_000
"""Once every repetition is written out."""
MAX_RULES = 1_000

_REPEATED = re.compile(r"\{\s*(\d*)\s*(?:,\s*(\d*)\s*)?\}")
_REGEX_PIECES = re.compile(r"(?s)\\.|\[(?:\\.|[^\]\\])*\]|\{\s*\d*\s*(?:,\s*\d*\s*)?\}|.")
_EBNF_PIECES = re.compile(
    r"""(?s)"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|\#[^\n]*|\{\s*\d*\s*(?:,\s*\d*\s*)?\}|::=|\w[\w-]*|\S"""
)
_REPEATING = ("maxItems", "minItems", "maxProperties", "minProperties")
_LENGTHS = ("maxLength", "minLength")
_VALUES = ("const", "enum", "default", "examples")
"""Keywords whose content is no schema, whatever it looks like."""


def check_size(kind: str, text: str) -> None:
    """Raise InvalidGuide for a guide of this kind that is too long, too deep or too large written out."""
    # Choices come as a list in JSON, whose brackets, quotes and escapes are none of theirs.
    length = sum(map(len, json.loads(text))) if kind == "choice" else len(text)
    _check("long", length, MAX_CHARACTERS, "characters")
    if kind == "regex":
        _check_symbols(_symbols(_REGEX_PIECES.findall(text)))
    elif kind == "ebnf_grammar":
        _check_symbols(_ebnf_symbols(text))
    elif kind in ("json_schema", "structural_tag"):
        _check_symbols(_schema_symbols(_parsed(text)))


def _check_symbols(count: int) -> None:
    _check("large, repetitions written out", count, MAX_SYMBOLS, "symbols")


def _check(what: str, count: int, most: int, unit: str) -> None:
    if count > most:
        raise InvalidGuide(f"too {what}: {count} {unit}, allowed are {most}")


def _ebnf_symbols(text: str) -> int:
    pieces = [piece for piece in _EBNF_PIECES.findall(text) if not piece.startswith("#")]
    _check("many rules", pieces.count("::="), MAX_RULES, "rules")
    return _symbols(pieces)


def _symbols(pieces: list[str]) -> int:
    """What is left when every repetition is written out. Raises InvalidGuide for groups too deep."""
    total, last = 0, 0  # of the group that is open; the last symbol or group is not in the total yet
    outer: list[int] = []
    for piece in pieces:
        repeated = _REPEATED.fullmatch(piece)
        if repeated:
            last *= max(_number(repeated[1]), _number(repeated[2]), 1)
        elif piece == "(":
            outer.append(total + last)
            _check("deep", len(outer), MAX_DEPTH, "groups in each other")
            total, last = 0, 0
        elif piece == ")":
            total, last = (outer.pop() if outer else 0), total + last
        elif piece not in ("*", "+", "?", "|"):
            total, last = total + last, _length(piece)
    return sum(outer) + total + last


def _length(piece: str) -> int:
    return max(len(piece) - 2, 1) if piece[0] == '"' else 1


def _number(digits: str | None) -> int:
    # Python refuses to read thousands of digits, and nothing needs to tell such numbers apart.
    return int((digits or "0")[:9])


def _parsed(text: str) -> object:
    depth = deepest = 0
    for piece in re.findall(r'"(?:\\.|[^"\\])*"|[\[{\]}]', text):
        depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(piece, 0)
        deepest = max(deepest, depth)
    _check("deep", deepest, MAX_DEPTH, "levels")
    try:
        return json.loads(text)
    except ValueError:
        raise InvalidGuide("must be JSON") from None


def _schema_symbols(value: object) -> int:
    """A repetition counts all that is in its schema, and a pattern what it stands for."""
    if isinstance(value, list):
        return 1 + sum(map(_schema_symbols, value))
    if not isinstance(value, dict):
        return 0
    characters = max(_count(value.get(keyword)) for keyword in _LENGTHS)
    times = max(_count(value.get(keyword)) for keyword in _REPEATING)
    return 1 + characters + max(times, 1) * sum(_parts(value))


def _parts(schema: dict[str, object]) -> Iterator[int]:
    for keyword, value in schema.items():
        if keyword == "pattern" and isinstance(value, str):
            yield _symbols(_REGEX_PIECES.findall(value))
        elif keyword == "grammar" and isinstance(value, str):
            yield _ebnf_symbols(value)
        elif keyword not in _VALUES:
            yield _schema_symbols(value)


def _count(value: object) -> int:
    # Of numbers that large nothing needs to be told apart, and some are no integers.
    return int(max(0, min(MAX_SYMBOLS + 1, value))) if isinstance(value, int | float) else 0
