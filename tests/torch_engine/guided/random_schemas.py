"""Random JSON schemas with keywords of every kind, and random values.

Small alphabets on purpose: what a schema forbids has to come up in an answer.
"""

from __future__ import annotations

import json
from random import Random

NAMES = ("a", "b", "x1", 'q"\n', "é")
VALUES = (None, True, False, 0, 1, 2, 7, -3, 1.5, "", "a", "b", "ab", 'q"\n', "é😀", [], [1], {"a": 1})
PATTERNS = ("^a", "b$", "^[a-z]+$", "^[^a]{2}$", "a.b", '^["\\\\]+$', "^(a|b)*$", "[0-9]{2}", "^x", "^a|b$")
FORMATS = ("date", "date-time", "time", "ipv4", "ipv6", "uuid", "email", "duration", "regex", "password")
ANNOTATIONS = {
    "title": "t",
    "description": "d",
    "default": 1,
    "$comment": "c",
    "x-mine": {},
    "unheard-of": [],
}
CHARACTERS = ("a", "b", "\\u0061", "\\n", "\n", "é", "9", "😀")
WRITTEN_NAMES = ('"a"', '"b"', '"x1"', '"\\u0061"', '"x\\u0031"', '"c"')


class SchemaWriter:
    """Writes schemas; some of their parts are referred to."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def document(self) -> object:
        """A whole schema, with two definitions."""
        schema = self.schema(3)
        if isinstance(schema, dict):
            schema["$defs"] = {"one": self.schema(1), "two": self.schema(2)}
        return schema

    def schema(self, depth: int) -> object:
        """A schema of at most that many levels."""
        random = self._random
        kinds = [self._typed] * 6 + [self._listed] * 2 + [self._trivial]
        if depth > 0:
            kinds += [self._joined] * 2 + [self._reference]
        schema = random.choice(kinds)(depth)
        if isinstance(schema, dict) and random.random() < 0.1:
            schema.update([random.choice([*ANNOTATIONS.items()])])
        return schema

    def _trivial(self, depth: int) -> object:
        return self._random.choice([True, {}, {"type": "null"}, {"type": "boolean"}])

    def _listed(self, depth: int) -> object:
        values = self._random.sample(VALUES, self._random.randint(1, 4))
        schema: dict[str, object] = {"enum": values} if self._random.random() < 0.6 else {"const": values[0]}
        if self._random.random() < 0.3:
            schema["type"] = self._random.choice(["string", "integer", ["number", "null"]])
        return schema

    def _reference(self, depth: int) -> object:
        schema: dict[str, object] = {"$ref": self._random.choice(["#/$defs/one", "#/$defs/two"])}
        return schema | self._sometimes(0.2, self._typed, 0)

    def _joined(self, depth: int) -> object:
        word = self._random.choice(["anyOf", "anyOf", "oneOf", "oneOf", "allOf", "not", "if"])
        if word == "not":
            return {"not": self.schema(0)} | self._sometimes(0.5, self._typed, 0)
        if word == "if":
            return {"if": self.schema(0), "then": self.schema(0), "else": self.schema(0)}
        parts = [self.schema(depth - 1) for _ in range(self._random.randint(1, 3))]
        return {word: parts} | self._sometimes(0.3, self._typed, 0)

    def _typed(self, depth: int) -> dict[str, object]:
        kinds = ["integer", "number", "string"] + ["array", "object", "object"] * (depth > 0)
        kind = self._random.choice(kinds)
        schema: dict[str, object] = {} if self._random.random() < 0.1 else {"type": kind}
        if "type" in schema and self._random.random() < 0.1:
            schema["type"] = [kind, "null"]
        return schema | getattr(self, f"_{kind}")(depth)

    def _integer(self, depth: int) -> dict[str, object]:
        low = self._random.randint(-12, 12)
        high = low + self._random.randint(1, 30)
        bounds = {"minimum": low, "maximum": high, "exclusiveMinimum": low, "exclusiveMaximum": high}
        return self._some({**bounds, "multipleOf": self._random.choice([2, 3, 1.5])}, 0.25)

    def _number(self, depth: int) -> dict[str, object]:
        low = self._random.choice([-3.5, 0, 0.25, 2])
        bounds = {"minimum": low, "maximum": low + 1.75, "exclusiveMaximum": low + 2, "exclusiveMinimum": low}
        return self._some({**bounds, "multipleOf": 0.5}, 0.25)

    def _string(self, depth: int) -> dict[str, object]:
        short = self._random.randint(0, 3)
        lengths = {"minLength": short, "maxLength": short + self._random.randint(0, 3)}
        looks = {"pattern": self._random.choice(PATTERNS), "format": self._random.choice(FORMATS)}
        return self._some(lengths, 0.3) | self._some(looks, 0.2)

    def _array(self, depth: int) -> dict[str, object]:
        few = self._random.randint(0, 2)
        sizes = {"minItems": few, "maxItems": few + self._random.randint(0, 2)}
        parts = {"items": self.schema(depth - 1), "prefixItems": [self.schema(0), self.schema(0)]}
        rare = {
            "uniqueItems": self._random.random() < 0.5,
            "contains": {"const": 1},
            "unevaluatedItems": False,
        }
        return self._some(parts, 0.6) | self._some(sizes, 0.3) | self._some(rare, 0.07)

    def _object(self, depth: int) -> dict[str, object]:
        random = self._random
        names = random.sample(NAMES, random.randint(0, 3))
        required = [name for name in [*names, "x1"] if random.random() < 0.5]
        few = random.randint(0, 2)
        often = {"properties": {name: self.schema(depth - 1) for name in names}, "required": required}
        others = {
            "additionalProperties": random.choice([False, False, True, self.schema(0)]),
            "patternProperties": {random.choice(PATTERNS): self.schema(0), "^x": self.schema(0)},
            "minProperties": few,
            "maxProperties": few + random.randint(0, 2),
        }
        rare = {
            "propertyNames": random.choice([{"maxLength": 2}, {"type": "string"}]),
            "dependentRequired": {"a": ["b"]},
            "unevaluatedProperties": False,
        }
        return self._some(often, 0.8) | self._some(others, 0.25) | self._some(rare, 0.05)

    def _some(self, keywords: dict[str, object], share: float) -> dict[str, object]:
        return {word: value for word, value in keywords.items() if self._random.random() < share}

    def _sometimes(self, share: float, write, depth: int) -> dict[str, object]:
        return write(depth) if self._random.random() < share else {}


def text_of_value(random: Random, depth: int = 2) -> str:
    """A value as JSON, written as nobody expects: escapes, blanks, and names that come twice."""
    kind = random.choice("vvvsnao" if depth else "vvvsn")
    if kind == "v":
        return json.dumps(random.choice(VALUES), ensure_ascii=random.random() < 0.5)
    if kind == "n":
        return random.choice(["-0", "1.0", "10e-1", "2E0", "3", "12", "0.25", "0.750", "-7", "1e3"])
    if kind == "s":
        return '"' + "".join(random.choices(CHARACTERS, k=random.randint(0, 4))) + '"'
    if kind == "a":
        return f"[{','.join(text_of_value(random, depth - 1) for _ in range(random.randint(0, 3)))}]"
    names = random.choices(WRITTEN_NAMES, k=random.randint(0, 3))
    members = [f"{name}: {text_of_value(random, depth - 1)}" for name in names]
    return "{" + ",".join(members) + "}"
