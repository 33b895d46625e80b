"""Guides whose whole language is known: what a text must become, and what may still become that. Pure."""

from __future__ import annotations

import json
import re
import string
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from enginewire import v1 as pb

DIGITS: Final = "[0-9]{4}"
COLOURS: Final = ("green", "blue", "greenish")
SCHEMA: Final = json.dumps(
    {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}},
        "required": ["ok"],
        "additionalProperties": False,
    }
)
INSTANCES: Final = ('{"ok":true}', '{"ok":false}')


@dataclass(frozen=True, slots=True, kw_only=True)
class Language:
    """One guide. `id`: the requirement that asks for it. `may_become`: whether some match begins so.

    `characters`: those of a free language, where any of them may follow: no engine writes any of it unasked.
    """

    id: str
    mode: pb.GuidedMode.ValueType
    guide: pb.GuidedDecoding
    described: str
    matches: Callable[[str], bool]
    may_become: Callable[[str], bool]
    characters: str = ""


Pairs = list[tuple[Language, Language]]


def is_instance(text: str) -> bool:
    """Whether a text is JSON that satisfies `SCHEMA`."""
    try:
        value = json.loads(text)
    except ValueError:
        return False
    return isinstance(value, dict) and list(value) == ["ok"] and isinstance(value["ok"], bool)


def begins_an_instance(text: str) -> bool:
    """Whether such JSON begins so; white space aside."""
    compact = "".join(text.split())
    return any(instance.startswith(compact) for instance in INSTANCES)


LANGUAGES: Final = (
    Language(
        id="GDE-01",
        mode=pb.GUIDED_MODE_JSON_SCHEMA,
        guide=pb.GuidedDecoding(json_schema=SCHEMA),
        described=SCHEMA,
        matches=is_instance,
        may_become=begins_an_instance,
    ),
    Language(
        id="GDE-02",
        mode=pb.GUIDED_MODE_REGEX,
        guide=pb.GuidedDecoding(regex=DIGITS),
        described=DIGITS,
        matches=lambda text: bool(re.fullmatch(DIGITS, text)),
        may_become=lambda text: bool(re.fullmatch("[0-9]{0,4}", text)),
        characters="0123456789",
    ),
    Language(
        id="GDE-03",
        mode=pb.GUIDED_MODE_CHOICE,
        guide=pb.GuidedDecoding(choice=pb.GuidedChoice(choices=COLOURS)),
        described=str(COLOURS),
        matches=lambda text: text in COLOURS,
        may_become=lambda text: any(colour.startswith(text) for colour in COLOURS),
    ),
)


def twins(one: str, other: str) -> Pairs:
    """Guides of different kinds whose text is the same, and which no text follows both of; of two words.

    The text of a list of alternatives may be they themselves, or that list as JSON.
    """
    pattern, schema = f"[{one}]{{2}}", json.dumps({"enum": [one]})
    return [
        (_choice(pattern), _regex(pattern)),
        (_choice(one, other), _regex(json.dumps([one, other]))),
        (_choice(schema), _schema(schema, one)),
    ]


def long_twins(one: str, other: str) -> Pairs:
    """Long guides of one kind that differ at their end alone, of two words. No text follows both."""
    beginning = string.ascii_lowercase * 40

    def schema(word: str) -> Language:
        return _schema(json.dumps({"description": beginning, "enum": [word]}), word)

    def regex(word: str) -> Language:
        return _regex(f"[{beginning}][{word}]")

    return [(make(one), make(other)) for make in (schema, regex)]


def _choice(*texts: str) -> Language:
    return Language(
        id="GDE-03",
        mode=pb.GUIDED_MODE_CHOICE,
        guide=pb.GuidedDecoding(choice=pb.GuidedChoice(choices=texts)),
        described=str(texts),
        matches=lambda text: text in texts,
        may_become=lambda text: any(each.startswith(text) for each in texts),
    )


def _regex(pattern: str) -> Language:
    """One whose matches are no longer than two characters."""
    return Language(
        id="GDE-02",
        mode=pb.GUIDED_MODE_REGEX,
        guide=pb.GuidedDecoding(regex=pattern),
        described=pattern,
        matches=lambda text: bool(re.fullmatch(pattern, text)),
        may_become=lambda text: len(text) < 2,
    )


def _schema(schema: str, value: str) -> Language:
    """One with a single value."""
    return Language(
        id="GDE-01",
        mode=pb.GUIDED_MODE_JSON_SCHEMA,
        guide=pb.GuidedDecoding(json_schema=schema),
        described=schema,
        matches=lambda text: text.strip() == json.dumps(value),
        may_become=lambda text: json.dumps(value).startswith(text.strip()),
    )


VALUES: Final = list(range(10))
LEFT: Final = VALUES[-1]
"""What the keywords below leave of the values; of an answer that keeps them not, nine in ten are others."""

Schema = dict[str, object]
KEYWORDS: Final[dict[str, tuple[Schema, Callable[[object], bool]]]] = {
    "uniqueItems": (
        {
            "type": "array",
            "items": {"enum": VALUES[:5]},
            "minItems": 5,
            "maxItems": 5,
            "uniqueItems": True,
        },
        lambda value: isinstance(value, list) and sorted(value) == VALUES[:5],
    ),
    "contains": (
        {
            "type": "array",
            "items": {"enum": VALUES},
            "minItems": 1,
            "maxItems": 1,
            "contains": {"enum": [LEFT]},
        },
        lambda value: value == [LEFT],
    ),
    "not": ({"enum": VALUES, "not": {"enum": VALUES[:-1]}}, lambda value: value == LEFT),
    "allOf": ({"enum": VALUES, "allOf": [{"enum": [LEFT]}]}, lambda value: value == LEFT),
    "if": (
        {"enum": VALUES, "if": {"enum": VALUES[:-1]}, "then": {"enum": [LEFT]}},
        lambda value: value == LEFT,
    ),
    "minimum": ({"enum": VALUES, "minimum": LEFT}, lambda value: value == LEFT),
}
"""Schemas of which a keyword that grammars may lack leaves little, and whether a value is one of these."""


def _in_a_property(schema: Schema) -> Schema:
    return {
        "type": "object",
        "properties": {"a": schema},
        "required": ["a"],
        "additionalProperties": False,
    }


PLACES: Final[dict[str, tuple[Callable[[Schema], Schema], Callable[[Any], object]]]] = {
    "at the top": (lambda schema: schema, lambda value: value),
    "in a property": (_in_a_property, lambda value: value["a"]),
    "in an item": (
        lambda schema: {"type": "array", "items": schema, "minItems": 1, "maxItems": 1},
        lambda value: value[0],
    ),
    "behind a reference": (
        lambda schema: {**_in_a_property({"$ref": "#/$defs/a"}), "$defs": {"a": schema}},
        lambda value: value["a"],
    ),
}
"""Where a schema may be inside of another, and the value that is for it."""


def keeps(text: str, keyword: str, place: str) -> bool:
    """Whether an answer keeps the schema of a keyword at a place."""
    try:
        return KEYWORDS[keyword][1](PLACES[place][1](json.loads(text)))
    except (ValueError, LookupError, TypeError):
        return False
