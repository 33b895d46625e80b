"""The schemas inside a JSON schema: where they are, where a reference leads, and which exclude each other.

Knows the words of JSON Schema (2020-12) and nothing about what a grammar library makes of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Final

Schema = Mapping[str, object]


class InvalidGuide(ValueError):
    """The guide cannot be compiled; the text says why."""


def words(text: str) -> frozenset[str]:
    """Keywords, written with blanks between them."""
    return frozenset(text.split())


ONE: Final = words(
    "additionalItems additionalProperties contains else if items not propertyNames then unevaluatedItems"
    " unevaluatedProperties"
)
MANY: Final = ("allOf", "anyOf", "oneOf", "prefixItems")
NAMED: Final = ("dependentSchemas", "patternProperties", "properties")
"""Keywords that hold a schema, a list of them, and schemas by name."""
NAMED_ASIDE: Final = ("$defs", "definitions")
"""Schemas that count only where a reference leads to them."""
FORMATS: Final = words(
    "date date-time duration email hostname idn-email idn-hostname ipv4 ipv6 iri iri-reference json-pointer"
    " regex relative-json-pointer time uri uri-reference uri-template uuid"
)
"""All that JSON Schema defines. Any other, as `password`, is a note."""
OFF: Final[Mapping[str, Sequence[object]]] = {
    "dependentRequired": [{}],
    "dependentSchemas": [{}],
    "not": [False],
    "propertyNames": [{}, True, {"type": "string"}],
    "unevaluatedItems": [{}, True],
    "unevaluatedProperties": [{}, True],
    "uniqueItems": [False],
}
"""Values with which a keyword forbids nothing."""
TYPES: Final = ("array", "boolean", "null", "number", "object", "string")
"""All types but `integer`, which every number may be."""
MAX_REFERENCES: Final = 32
"""That lead to each other."""
MAX_NESTED_TAGS: Final = 4


def schemas_in(root: object) -> Iterator[tuple[str, Schema]]:
    """Every schema that an answer may have to do with, and its JSON pointer, from the outside in."""
    waiting, met = [("#", root)], {"#"}
    while waiting:
        pointer, schema = waiting.pop()
        if not isinstance(schema, dict):
            continue
        yield pointer, schema
        reference = schema.get("$ref")
        if isinstance(reference, str) and reference not in met:
            met.add(reference)
            waiting.append((reference, found(reference, root)))
        waiting += reversed([(f"{pointer}/{place}", child) for place, child in _children(schema)])


def _children(schema: Schema) -> Iterator[tuple[str, object]]:
    for keyword, value in schema.items():
        if keyword in ONE:
            yield keyword, value
        elif keyword in MANY and isinstance(value, list):
            yield from ((f"{keyword}/{place}", child) for place, child in enumerate(value))
        elif keyword in NAMED and isinstance(value, dict):
            yield from ((f"{keyword}/{_escaped(name)}", child) for name, child in value.items())


def rewritten(schema: object, root: object) -> object:
    """The same schema without what forbids nothing, and with `anyOf` where that means the same as `oneOf`."""
    if not isinstance(schema, dict):
        return schema
    return {
        _plain(keyword, schema, root): _rewritten_value(keyword, value, root)
        for keyword, value in schema.items()
        if not is_off(keyword, value)
    }


def is_off(keyword: str, value: object) -> bool:
    """True for a keyword that forbids nothing with this value."""
    if keyword == "format":
        return not isinstance(value, str) or value not in FORMATS
    return any(value == each and type(value) is type(each) for each in OFF.get(keyword, ()))


def _plain(keyword: str, schema: Schema, root: object) -> str:
    means_any = keyword == "oneOf" and "anyOf" not in schema and excludes(schema["oneOf"], root)
    return "anyOf" if means_any else keyword


def _rewritten_value(keyword: str, value: object, root: object) -> object:
    if keyword in ONE:
        return rewritten(value, root)
    if keyword in MANY and isinstance(value, list):
        return [rewritten(each, root) for each in value]
    if keyword in (*NAMED, *NAMED_ASIDE) and isinstance(value, dict):
        return {name: rewritten(each, root) for name, each in value.items()}
    return value


def found(reference: str, root: object) -> object:
    """What a reference of the form `#/…` leads to; None for any other, and when there is nothing."""
    first, *steps = reference.split("/")
    target: object = root if first == "#" else None
    for step in (step.replace("~1", "/").replace("~0", "~") for step in steps):
        if isinstance(target, list) and step.isdecimal() and len(step) < 6:
            target = dict(enumerate(target)).get(int(step))
        else:
            target = target.get(step) if isinstance(target, dict) else None
    return target


def excludes(alternatives: object, root: object) -> bool:
    """True when it is certain that no value fits two of the alternatives."""
    if not isinstance(alternatives, list) or not alternatives:
        return False
    pairs = combinations([_target(schema, root) for schema in alternatives], 2)
    return all(_are_disjoint(one, other, root, MAX_NESTED_TAGS) for one, other in pairs)


def _target(schema: object, root: object) -> Schema:
    """What a schema refers to; what stands beside the reference only narrows that."""
    for _ in range(MAX_REFERENCES):
        if not isinstance(schema, dict) or not isinstance(schema.get("$ref"), str):
            break
        schema = found(schema["$ref"], root)
    return schema if isinstance(schema, dict) else {}


def _are_disjoint(one: Schema, other: Schema, root: object, depth: int) -> bool:
    types = types_of(one) & types_of(other)
    if not types:
        return True
    if (values := values_of(one)) is not None and (others := values_of(other)) is not None:
        # Python takes True for 1, which only makes this more careful.
        return not any(value == each for value in values for each in others)
    if types != {"object"} or not depth:
        return False
    return _forbids(one, other) or _forbids(other, one) or _tags_differ(one, other, root, depth)


def _forbids(one: Schema, other: Schema) -> bool:
    """True for objects of which `other` must have a property that `one` must not have."""
    if one.get("additionalProperties") is not False or "patternProperties" in one:
        return False
    properties = one.get("properties", {})
    return isinstance(properties, dict) and any(name not in properties for name in required_names(other))


def _tags_differ(one: Schema, other: Schema, root: object, depth: int) -> bool:
    """True for objects that both must have a property which cannot be the same in both."""
    mine, theirs = _required(one), _required(other)
    return any(
        _are_disjoint(_target(mine[name], root), _target(theirs[name], root), root, depth - 1)
        for name in mine.keys() & theirs.keys()
    )


def _required(schema: Schema) -> Schema:
    properties = schema.get("properties")
    known = properties if isinstance(properties, dict) else {}
    return {name: known[name] for name in required_names(schema) if name in known}


def required_names(schema: Schema) -> list[str]:
    """The properties that an object must have."""
    names = schema.get("required")
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def types_of(schema: Schema) -> frozenset[str]:
    """The types a value may have, `integer` as `number`."""
    stated = schema.get("type", [*TYPES])
    names = [name for name in (stated if isinstance(stated, list) else [stated]) if isinstance(name, str)]
    types = frozenset("number" if name == "integer" else name for name in names)
    values = values_of(schema)
    return types if values is None else types & types_of({"type": [type_of(value) for value in values]})


def values_of(schema: Schema) -> Sequence[object] | None:
    """The values that are allowed; None for a schema that does not list them."""
    if "const" in schema:
        return [schema["const"]]
    listed = schema.get("enum")
    return listed if isinstance(listed, list) else None


def type_of(value: object) -> str:
    """The narrowest type of a value of JSON."""
    kinds = {bool: "boolean", dict: "object", float: "number", int: "integer", list: "array", str: "string"}
    return kinds.get(type(value), "null")


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
