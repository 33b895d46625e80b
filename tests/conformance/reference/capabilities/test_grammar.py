from __future__ import annotations

import json

import pytest

from enginewire.conformance.reference.capabilities import grammar


def test_a_choice_may_end_where_another_goes_on() -> None:
    guide = grammar.choice(("green", "greenish"))
    assert (guide.is_complete("green"), guide.following("green")) == (True, {"i"})


def test_a_pattern_has_as_many_characters_as_it_says() -> None:
    guide = grammar.regex("[a-c]{2}x\\d")
    assert (guide.following("ab"), guide.following("abx")) == ({"x"}, set("0123456789"))
    assert (guide.is_complete("abx"), guide.is_complete("abx7")) == (False, True)


@pytest.mark.parametrize("pattern", ["(", "a*", "[", "a|b"])
def test_other_patterns_are_not_valid(pattern: str) -> None:
    with pytest.raises(ValueError, match="characters"):
        grammar.regex(pattern)


def test_every_instance_of_a_schema_is_a_text() -> None:
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}, "n": {"enum": [1, 2]}}}
    guide = grammar.json_schema(json.dumps(schema))
    assert guide.is_complete('{"ok": true, "n": 2}')
    assert not guide.is_complete('{"ok": true}')


@pytest.mark.parametrize("schema", ["{", "7", '{"type": 7}'])
def test_what_is_no_schema_is_not_valid(schema: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  # of json or of ours
        grammar.json_schema(schema)
