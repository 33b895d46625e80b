"""The types an option may have, and how text or a config file's value becomes one of them.

Knows nothing about names, flags or where a value came from.
"""

from __future__ import annotations

import math
import re
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Union, get_args, get_origin

TRUE: Final = ("true", "1", "yes", "on")
FALSE: Final = ("false", "0", "no", "off")
SIZE_SUFFIXES: Final = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
SHOWN_CHARACTERS: Final = 64


class OptionError(ValueError):
    """An option is not allowed as it is; the message names it and says what is allowed."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What values an option takes. `base` is the type of one value, `many` makes a tuple of them."""

    base: type
    many: bool = False
    optional: bool = False
    choices: tuple[str, ...] = ()
    at_least: float | None = None
    at_most: float | None = None
    is_size: bool = False

    def from_text(self, text: str) -> object:
        """The value that a flag or an environment variable spells. Raises OptionError."""
        if self.many:
            return tuple(self._one(item.strip()) for item in text.split(","))
        return self._one(text)

    def from_items(self, items: list[str]) -> object:
        """The tuple that a repeated flag spells. Raises OptionError."""
        return tuple(self._one(item) for item in items)

    def from_document(self, value: object) -> object:
        """The value that a TOML, JSON or YAML document holds. Raises OptionError."""
        if value is None and self.optional:
            return None
        if self.many:
            if not isinstance(value, list):
                raise self.refusal(value)
            return tuple(self._one_from_document(item) for item in value)
        return self._one_from_document(value)

    def refusal(self, value: object) -> OptionError:
        """What to raise for a value that is not of this kind."""
        return OptionError(f"must be {self.allowed()}, got {_shown(value)}")

    def allowed(self) -> str:
        """The allowed values in words."""
        words = f"one of {', '.join(self.choices)}" if self.choices else _WORDS[self.base]
        if self.is_size:
            words += " such as 1048576 or 8MiB"
        words += self._range()
        return f"a list, each {words}" if self.many else words

    def _range(self) -> str:
        if self.at_least is not None and self.at_most is not None:
            return f" from {self.at_least} to {self.at_most}"
        if self.at_least is not None:
            return f", at least {self.at_least}"
        return "" if self.at_most is None else f", at most {self.at_most}"

    def _one(self, text: str) -> object:
        try:
            value = _size(text) if self.is_size else _PARSERS[self.base](text)
        except (ValueError, RuntimeError) as error:
            raise self.refusal(text) from error
        return self._checked(value)

    def _one_from_document(self, value: object) -> object:
        spelled = self.base in (str, Path) or self.is_size
        if spelled and isinstance(value, str):
            return self._one(value)
        if self.base is float and type(value) is int:
            return self._one(str(value))
        # `type` and not isinstance: True is an int, and "max_num_seqs = true" is a mistake.
        if type(value) is not self.base:
            raise self.refusal(value)
        return self._checked(value)

    def _checked(self, value: object) -> object:
        if self.choices and value not in self.choices:
            raise self.refusal(value)
        if isinstance(value, int | float) and not isinstance(value, bool) and not self._is_in_range(value):
            raise self.refusal(value)
        return value

    def _is_in_range(self, value: float) -> bool:
        above = self.at_least is None or value >= self.at_least
        below = self.at_most is None or value <= self.at_most
        finite = isinstance(value, int) or math.isfinite(value)
        return finite and above and below


def kind_of(
    annotation: object, *, at_least: float | None = None, at_most: float | None = None, is_size: bool = False
) -> Kind:
    """The kind of a dataclass field with this (evaluated) annotation."""
    inner, optional = _without_none(annotation)
    origin, arguments = get_origin(inner), get_args(inner)
    many = origin is tuple
    if many:
        assert arguments[1:] == (Ellipsis,), f"options are tuple[X, ...], not {inner}"
        inner = arguments[0]
        origin, arguments = get_origin(inner), get_args(inner)
    if origin is Literal:
        return Kind(str, many, optional, choices=arguments)
    base = next((each for each in _PARSERS if each is inner), None)
    assert base is not None, f"no option can be of type {inner}"
    return Kind(base, many, optional, (), at_least, at_most, is_size)


def _without_none(annotation: object) -> tuple[object, bool]:
    if get_origin(annotation) not in (Union, types.UnionType):
        return annotation, False
    inner = [argument for argument in get_args(annotation) if argument is not type(None)]
    assert len(inner) == 1, f"options are X or X | None, not {annotation}"
    return inner[0], True


def _shown(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"


def _boolean(text: str) -> bool:
    if text.lower() not in (*TRUE, *FALSE):
        raise ValueError(text)
    return text.lower() in TRUE


def _text(text: str) -> str:
    # An argument that is not UTF-8 arrives with surrogates; no peer would accept it, nor a socket a NUL.
    text.encode()
    if "\0" in text:
        raise ValueError(text)
    return text


def _path(text: str) -> Path:
    if not text:
        raise ValueError("an empty path would mean the current folder")
    return Path(_text(text)).expanduser()


def _size(text: str) -> int:
    match = re.fullmatch(r"(\d+)([KMGT]iB)?", text)
    if match is None:
        raise ValueError(text)
    return int(match[1]) * SIZE_SUFFIXES.get(match[2], 1)


_PARSERS: Final[dict[type, Callable[[str], object]]] = {
    bool: _boolean,
    int: int,
    float: float,
    str: _text,
    Path: _path,
}
_WORDS: Final[dict[type, str]] = {
    bool: f"one of {', '.join((*TRUE, *FALSE))}",
    int: "a whole number",
    float: "a number",
    str: "UTF-8 text without NUL",
    Path: "a path",
}
