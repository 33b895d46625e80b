"""Guides small enough to read: finite sets of texts, and patterns of fixed length. Knows no model."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Final, Protocol

CLASS: Final = re.compile(
    r"(?:\[(?P<set>[^\]\\]+)\]|\\(?P<digit>d)|(?P<one>[^\\(){}\[\]*+?|.^$]))(?:\{(?P<count>\d+)\})?"
)

KEPT: Final = frozenset({"type", "enum", "properties", "required", "additionalProperties", "description"})
"""The keywords of schemas; the last one asks nothing of an instance."""


class Guide(Protocol):
    """What a text must become."""

    def following(self, text: str) -> set[str]:
        """The characters that may follow a text."""

    def is_complete(self, text: str) -> bool:
        """True when the text may end here."""


@dataclass(frozen=True)
class Texts:
    """One of some texts."""

    texts: frozenset[str]

    def following(self, text: str) -> set[str]:
        """The next characters of all that begin like this."""
        return {each[len(text)] for each in self.texts if each.startswith(text) and each != text}

    def is_complete(self, text: str) -> bool:
        """It is one of them."""
        return text in self.texts


@dataclass(frozen=True)
class Pattern:
    """One character of each set."""

    sets: Sequence[frozenset[str]]

    def following(self, text: str) -> set[str]:
        """The set at this place."""
        return set(self.sets[len(text)]) if len(text) < len(self.sets) else set()

    def is_complete(self, text: str) -> bool:
        """Every place is filled."""
        return len(text) == len(self.sets)


@cache
def choice(texts: tuple[str, ...]) -> Guide:
    """One of these. Raises ValueError without any."""
    if not texts or not all(texts):
        raise ValueError("one or more texts")
    return Texts(frozenset(texts))


@cache
def regex(pattern: str) -> Guide:
    """Characters, classes and `{n}`. Raises ValueError for anything else."""
    sets: list[frozenset[str]] = []
    place = 0
    while place < len(pattern):
        found = CLASS.match(pattern, place)
        if not found:
            raise ValueError("characters, classes and {n}")
        characters = (
            _range(found["set"]) if found["set"] else "0123456789" if found["digit"] else found["one"]
        )
        sets += [frozenset(characters)] * int(found["count"] or 1)
        place = found.end()
    return Pattern(tuple(sets))


@cache
def json_schema(text: str) -> Guide:
    """Schemas with few instances. Raises ValueError for others and for what is no schema."""
    schema = json.loads(text)
    return Texts(frozenset(_instances(schema)))


def _range(characters: str) -> str:
    return re.sub(
        r"(.)-(.)", lambda found: "".join(map(chr, range(ord(found[1]), ord(found[2]) + 1))), characters
    )


def _instances(schema: object) -> Iterable[str]:
    if not isinstance(schema, dict):
        raise ValueError("an object")
    if unkept := sorted(set(schema) - KEPT):
        raise ValueError(f"a schema without {', '.join(unkept)}")
    if "enum" in schema:
        return [json.dumps(value) for value in schema["enum"]]
    if schema.get("type") == "boolean":
        return ["true", "false"]
    if schema.get("type") != "object" or not schema.get("properties"):
        raise ValueError("objects with properties, booleans and enums")
    names = [json.dumps(name) for name in schema["properties"]]
    values = product(*map(_instances, schema["properties"].values()))
    return ["{" + ", ".join(map(": ".join, zip(names, each, strict=True))) + "}" for each in values]
