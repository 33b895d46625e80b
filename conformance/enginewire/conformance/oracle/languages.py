"""Guides whose whole language is known: what a text must become, and what may still become that. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

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
