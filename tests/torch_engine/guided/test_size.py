"""How much a guide stands for is known before a library sees it."""

from __future__ import annotations

import json

import pytest

from enginewire.server.engines.guides.schema import InvalidGuide
from enginewire.torch_engine.guided import size as guided_size
from enginewire.torch_engine.guided.size import check_size


def schema(**keywords: object) -> str:
    return json.dumps(keywords)


ITEMS = {
    "type": "array",
    "maxItems": 10,
    "items": {"type": "array", "maxItems": 5, "items": {"pattern": "a{4}"}},
}

SIZES = [
    ("regex", "abc", 3),
    ("regex", r"\(\[\{", 3),
    ("regex", "[a-z(){5}]x", 2),
    ("regex", "a{3}b{2,5}c{7,}d*e+f?", 3 + 5 + 7 + 3),
    ("regex", "(ab{2}){10}c", 31),
    ("regex", "((a{2}){3}){4}", 24),
    ("regex", "x((a|b){2}c){3}", 1 + 3 * (2 * 2 + 1)),
    ("regex", "a{0}b{,4}", 1 + 4),
    ("regex", "(a", 1),
    ("regex", "a)b", 2),
    ("ebnf_grammar", '"abcd"', 4),
    ("ebnf_grammar", '("ab" [a-z]{3}){4} # ("ab"){9999}', 4 * (2 + 3)),
    ("ebnf_grammar", r'"a\"(" b', 5),
    ("json_schema", schema(type="object"), 1),
    ("json_schema", schema(maxLength=7), 1 + 7),
    ("json_schema", schema(minLength=9, maxLength=3), 1 + 9),
    ("json_schema", schema(pattern="(ab){3}"), 1 + 6),
    ("json_schema", schema(maxItems=10, items={}), 1 + 10),
    ("json_schema", json.dumps(ITEMS), 1 + 10 * (1 + 5 * (1 + 4))),
    ("json_schema", schema(enum=[{"pattern": "a{999}"}], const={"maxItems": 9}), 1),
    ("json_schema", schema(anyOf=[{}, {}]), 1 + 1 + 2),
    ("json_schema", schema(maxItems="many", items={}, minItems=None), 2),
    (
        "structural_tag",
        json.dumps({"format": {"type": "grammar", "grammar": 'a ::= "bc"{3}'}}),
        1 + 1 + 1 + 1 + 6,
    ),
]


@pytest.mark.parametrize("letter", ["a", "é", '"'])
def test_choices_are_as_long_as_their_texts_are_without_what_json_adds(letter):
    check_size("choice", json.dumps([letter, letter * 65_535]))
    with pytest.raises(InvalidGuide, match="too long: 65537 characters"):
        check_size("choice", json.dumps([letter * 2, letter * 65_535]))


@pytest.mark.parametrize(("kind", "text", "size"), SIZES, ids=[text for _, text, _ in SIZES])
def test_every_repetition_counts_as_if_it_were_written_out(kind, text, size, monkeypatch):
    monkeypatch.setattr(guided_size, "MAX_SYMBOLS", size)
    check_size(kind, text)
    monkeypatch.setattr(guided_size, "MAX_SYMBOLS", size - 1)
    with pytest.raises(InvalidGuide, match=f"written out: {size} symbols, allowed are {size - 1}"):
        check_size(kind, text)


@pytest.mark.parametrize("times", ["9" * 40, "200001", "1e999", "1e300"])
def test_numbers_beyond_measure_are_too_large(times):
    with pytest.raises(InvalidGuide, match="too large"):
        check_size("json_schema", f'{{"maxItems": {times}, "items": {{}}}}')
    if times.isdigit():
        with pytest.raises(InvalidGuide, match="too large"):
            check_size("regex", f"a{{1,{times}}}")


@pytest.mark.parametrize("value", ["NaN", "-5", "-1e999"])
def test_numbers_that_make_no_sense_are_left_to_the_library(value):
    check_size("json_schema", f'{{"maxItems": {value}}}')


@pytest.mark.parametrize(
    ("kind", "of_depth"),
    [
        ("regex", lambda depth: "(" * depth + "a" + ")" * depth),
        ("ebnf_grammar", lambda depth: "root ::= " + "(" * depth + '"("' + ")" * depth),
        ("json_schema", lambda depth: '{"items":' * (depth - 1) + '{"const":"[[{"}' + "}" * (depth - 1)),
        ("structural_tag", lambda depth: "[" * depth + "]" * depth),
    ],
)
def test_depth_is_bounded(kind, of_depth):
    check_size(kind, of_depth(64))
    with pytest.raises(InvalidGuide, match=r"too deep: 65 .*, allowed are 64"):
        check_size(kind, of_depth(65))


def test_siblings_are_not_deep():
    check_size("regex", "(a)" * 500)
    check_size("json_schema", json.dumps([[]] * 500))


def test_the_number_of_rules_is_bounded():
    rules = "\n".join(f'r{i} ::= "a"' for i in range(1000))
    check_size("ebnf_grammar", rules + '\n# and "::=" in a comment ::=')
    with pytest.raises(InvalidGuide, match="too many rules: 1001 rules, allowed are 1000"):
        check_size("ebnf_grammar", rules + '\nroot ::= "a"')


@pytest.mark.parametrize("kind", ["regex", "ebnf_grammar", "json_schema", "structural_tag", "choice"])
def test_the_text_is_bounded(kind):
    text = "a" * 65_537
    with pytest.raises(InvalidGuide, match="too long: 65537 characters, allowed are 65536"):
        check_size(kind, json.dumps([text]) if kind == "choice" else text)


def test_text_that_is_no_json_is_refused():
    with pytest.raises(InvalidGuide, match="must be JSON"):
        check_size("json_schema", "{")
