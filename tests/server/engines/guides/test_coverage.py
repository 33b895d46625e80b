"""Which keywords and expressions are left to another library, and in which words they are refused."""

from __future__ import annotations

import json
from contextlib import suppress
from functools import partial

import pytest

from enginewire.server.engines.guides.coverage import (
    regex_for_xgrammar,
    schema_for_llguidance,
    schema_for_xgrammar,
    tag_for_llguidance,
    tag_for_xgrammar,
)
from enginewire.server.engines.guides.schema import InvalidGuide

BOUNDED = {"type": "string", "maxLength": 3}
CAT = {"type": "object", "properties": {"kind": {"const": "cat"}}, "required": ["kind"]}
DOG = {"type": "object", "properties": {"kind": {"const": "dog"}}, "required": ["kind"]}


def refusal(check, value) -> str:
    with pytest.raises(InvalidGuide) as caught:
        check(json.dumps(value))
    return str(caught.value)


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"properties": {"a/b": {"uniqueItems": True}}}, "uniqueItems at #/properties/a~1b"),
        ({"anyOf": [{}, {"not": {}}]}, "not at #/anyOf/1"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"contains": {}}}}, "contains at #/$defs/a"),
        (
            {"items": {"oneOf": [{"type": "integer"}, {"type": "number"}]}},
            "oneOf of alternatives that may overlap",
        ),
        ({"type": "string", "format": "regex"}, "format regex at #"),
        ({"type": "object", "minProperties": 2}, "minProperties of properties without a name at #"),
    ],
)
def test_what_llguidance_does_not_follow_is_named_with_its_place(schema, reason):
    assert refusal(schema_for_llguidance, schema).startswith(reason)


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"properties": {"a": BOUNDED}, "type": "object"}, "maxLength at #/properties/a"),
        ({"allOf": [{"type": "null"}]}, "allOf at #"),
        ({"type": "integer", "anyOf": [{"minimum": 3}]}, "type beside anyOf at #"),
        (
            {"$ref": "#/$defs/a", "minimum": 5, "$defs": {"a": {"type": "integer"}}},
            "minimum beside $ref at #",
        ),
        ({"$ref": "#a", "$defs": {"b": {"$anchor": "a"}}}, "$ref to another place than #/… at #"),
        ({"minimum": 5}, "minimum without type at #"),
        ({"type": "string", "enum": ["a", 1]}, "enum of other types than type at #"),
        ({"type": "object", "required": ["a"]}, "required without properties at #"),
        (
            {"type": "object", "properties": {"a": {}}, "additionalProperties": {}},
            "additionalProperties beside",
        ),
        ({"unheard-of": 1}, "unheard-of at #"),
    ],
)
def test_what_xgrammar_would_ignore_is_left_to_another_library(schema, reason):
    if reason.startswith("additionalProperties"):
        schema = {**schema, "additionalProperties": True}
    assert refusal(schema_for_xgrammar, schema).startswith(reason)
    schema_for_llguidance(json.dumps(schema))


@pytest.mark.parametrize("check", [schema_for_xgrammar, schema_for_llguidance])
@pytest.mark.parametrize(
    "alternatives",
    [
        [{"type": "integer"}, {"type": ["string", "null"]}],
        [{"const": 1}, {"enum": [2, "a"]}],
        [CAT, DOG],
        [{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/dog"}],
        [{"type": "object", "additionalProperties": False}, CAT],
    ],
)
def test_one_of_alternatives_that_exclude_each_other_is_any_of_them(check, alternatives):
    schema = {"oneOf": alternatives, "$defs": {"cat": CAT, "dog": DOG}}
    assert json.loads(check(json.dumps(schema)))["anyOf"] == alternatives


@pytest.mark.parametrize("check", [schema_for_xgrammar, schema_for_llguidance])
@pytest.mark.parametrize("pair", [[{"const": 1}, {"const": 1.0}], [CAT, CAT], [{"$ref": "#"}, {}], [{}, 7]])
def test_alternatives_that_may_overlap_are_refused(check, pair):
    assert refusal(check, {"oneOf": pair}).startswith("oneOf of alternatives that may overlap at #")


@pytest.mark.parametrize("check", [schema_for_xgrammar, schema_for_llguidance])
def test_what_forbids_nothing_is_no_reason_to_refuse(check):
    schema = {"title": "t", "description": "d", "default": 1, "x-mine": {"not": {}}, "type": "array"}
    for more in (
        {"uniqueItems": False},
        {"propertyNames": {"type": "string"}},
        {"format": "password"},
        {"unevaluatedProperties": True, "not": False},
    ):
        assert json.loads(check(json.dumps({**schema, **more}))) == schema


@pytest.mark.parametrize("check", [schema_for_xgrammar, schema_for_llguidance])
@pytest.mark.parametrize(
    "odd", [{"type": {}}, {"required": 1}, {"properties": []}, {"enum": 1}, {"type": [[]]}]
)
def test_what_is_no_schema_fails_in_no_other_way(check, odd):
    with suppress(InvalidGuide):
        check(json.dumps({"anyOf": [odd]}))


@pytest.mark.parametrize("text", ["{", "3", '"a"', "[" * 100_000])
def test_a_schema_is_json_and_an_object_or_a_boolean(text):
    with pytest.raises(InvalidGuide, match="must be"):
        schema_for_xgrammar(text)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        (".", r"[^\n\uD800-\uDFFF]"),
        (r"a\s", r"a[ \t\n\r\f\v]"),
        (r"[\sa]", r"[ \t\n\r\f\va]"),
        ("[^a]", r"[^\uD800-\uDFFFa]"),
        ("[^-a]", r"[^\uD800-\uDFFF\-a]"),
        ("[^-]", r"[^\uD800-\uDFFF\-]"),
        ("^a$", "^a$"),
    ],
)
def test_xgrammar_gets_an_expression_as_it_is_meant(text, meant):
    assert regex_for_xgrammar(text) == meant


@pytest.mark.parametrize(
    "text",
    [
        "a^b",
        "a$b",
        "(?=a)",
        r"\b",
        r"\p{L}",
        r"[\^a]",
        "[]a]",
        r"\x{61}",
        "[[:alpha:]]",
        "[",
        "[^",
        "[^]",
        "[a",
        r"[\W\d]",
        "\\",
    ],
)
def test_an_expression_that_xgrammar_takes_for_another_is_refused(text):
    with pytest.raises(InvalidGuide, match="is not followed by xgrammar in this place"):
        regex_for_xgrammar(text)


def test_schemas_and_expressions_in_a_structural_tag_are_looked_at_too():
    parts = [{"type": "regex", "pattern": "."}, {"type": "json_schema", "json_schema": {"type": "null"}}]
    tag = {"type": "structural_tag", "format": {"type": "sequence", "elements": parts}}
    check = partial(tag_for_xgrammar, max_whitespace=3)
    read = json.loads(check(json.dumps(tag)))["format"]["elements"]
    schema = parts[1] | {"max_whitespace_cnt": 3}
    assert read == [{"type": "regex", "pattern": r"[^\n\uD800-\uDFFF]"}, schema]
    parts[1]["json_schema"] = {"items": BOUNDED, "type": "array"}
    assert refusal(check, tag) == "maxLength at #/items is not followed by xgrammar"
    old = {"structures": [{"begin": "<a>", "schema": {"not": {}}, "end": "</a>"}], "triggers": ["<a>"]}
    assert refusal(check, old) == "not at # is not followed by xgrammar"


def test_a_structural_tag_without_a_bound_has_none_and_llguidance_follows_other_schemas_in_it():
    tag = {"format": {"type": "json_schema", "json_schema": {"type": "array", "items": {"type": "null"}}}}
    assert json.loads(tag_for_xgrammar(json.dumps(tag))) == tag
    tag["format"]["json_schema"] = BOUNDED
    assert refusal(tag_for_xgrammar, tag) == "maxLength at # is not followed by xgrammar"
    assert json.loads(tag_for_llguidance(json.dumps(tag))) == tag
    tag["format"]["json_schema"] = {"not": {}}
    assert refusal(tag_for_llguidance, tag) == "not at # is not followed by llguidance"
