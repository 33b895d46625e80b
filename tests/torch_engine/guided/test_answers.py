"""Finished answers keep what was asked for, and whoever cannot make sure of that refuses.

jsonschema and Python's `re` are the judges. Every test prints its seed with its name.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterator
from contextlib import suppress
from fractions import Fraction
from functools import cache
from random import Random

import numpy
import pytest
from jsonschema import Draft202012Validator, FormatChecker

from enginewire.server.engines.guides.schema import InvalidGuide
from enginewire.torch_engine.guided.library import Library, LibraryGrammar, Vocabulary
from enginewire.torch_engine.guided.open_library import open_library
from tests.long import long_but
from tests.torch_engine.guided.random_expressions import random_grammar, random_regex
from tests.torch_engine.guided.random_schemas import SchemaWriter, text_of_value

LIBRARIES = ("xgrammar", "llguidance")
PIECES = (
    b'":',
    b'", "',
    b'{"',
    b'"}',
    b"],",
    b"tru",
    b"null",
    b"ab",
    "é".encode(),
    b"\\u00",
    b"12",
    b"1.5",
    b"e5",
)
TOKENS = tuple(
    dict.fromkeys([*(bytes([byte]) for byte in range(256)), *PIECES, "😀".encode(), b"\n\n", b'a"'])
)
END = len(TOKENS)
VOCABULARY = Vocabulary((*TOKENS, b""), (END,))
CLOSING = numpy.array([token[:1] in (b'"', b"}", b"]") for token in TOKENS] + [True])
RARE = numpy.array([len(token) == 1 and not 32 <= token[0] < 128 for token in TOKENS] + [False])
MAX_TOKENS = 120
MAX_DIGITS = 3
"""Of an exponent: a fraction with more is too much for the judge."""
CHECKED_FORMATS = FormatChecker(["date", "email", "ipv4", "ipv6", "uuid"])


@cache
def library(name: str) -> Library:
    return open_library(name, VOCABULARY)


def answers(grammar: LibraryGrammar, seed: int) -> Iterator[bytes]:
    """What random weights make of a grammar, as far as they finish."""
    for turn in range(4):
        numbers = numpy.random.default_rng([seed, turn])
        answer = finished(grammar, numbers, numbers.exponential(size=END + 1) ** 2)
        if answer is not None:
            yield answer


def finished(
    grammar: LibraryGrammar, numbers: numpy.random.Generator, weights: numpy.ndarray
) -> bytes | None:
    matcher, tokens = grammar.start([END]), []
    masks = numpy.zeros((1, -(-(END + 1) // 32)), dtype=numpy.int32)
    for place in range(MAX_TOKENS):
        if not matcher.fill(masks, 0):
            return None
        allowed = numpy.unpackbits(masks.view(numpy.uint8), bitorder="little")[: END + 1]
        pull = weights * allowed * numpy.where(CLOSING, 0.1 * (1 + place), 1) * numpy.where(RARE, 0.2, 1)
        if not pull.any():
            return None
        token = int(numbers.choice(END + 1, p=pull / pull.sum()))
        assert matcher.accept(token)
        if token == END:
            return b"".join(tokens)
        tokens.append(TOKENS[token])
    return None


def is_taken(grammar: LibraryGrammar, text: str) -> bool:
    matcher = grammar.start([END])
    return all(matcher.accept(byte) for byte in text.encode()) and matcher.accept(END)


def exact(digits: str) -> int | float | Fraction:
    if len(digits.lower().partition("e")[2].lstrip("+-")) > MAX_DIGITS:
        return float("nan")
    number = Fraction(digits)
    return int(number) if number.denominator == 1 else number


def fault_of(schema: object, text: str) -> str | None:
    """What jsonschema says, with numbers as they are written."""
    judge = Draft202012Validator(
        json.loads(json.dumps(schema), parse_float=exact), format_checker=CHECKED_FORMATS
    )
    try:
        value = json.loads(text, parse_float=exact)
    except ValueError as error:
        return str(error)
    return next((error.message for error in judge.iter_errors(value)), None)


def grammar_of(name: str, kind: str, text: str) -> LibraryGrammar | None:
    try:
        return library(name).load(library(name).compile(kind, text))
    except InvalidGuide:
        return None


@pytest.mark.parametrize("seed", long_but(range(20), range(40)))
@pytest.mark.parametrize("name", LIBRARIES)
def test_finished_answers_keep_every_keyword_of_a_random_schema(name, seed):
    random = Random(seed)
    for _ in range(4):
        schema = SchemaWriter(random).document()
        texts = [text_of_value(random) for _ in range(25)]
        grammar = grammar_of(name, "json_schema", json.dumps(schema))
        if grammar is None:
            continue
        taken = [text for text in texts if is_taken(grammar, text)]
        # In a string of a schema xgrammar takes half a pair of surrogates, which no text can hold.
        ended = [answer.decode(errors="replace") for answer in answers(grammar, seed)]
        for text in [*ended, *taken]:
            assert fault_of(schema, text) is None, (json.dumps(schema), text)


STRINGS = re.compile(r'"(?:[^"\\]|\\.)*"')


@pytest.mark.parametrize(
    ("name", "whitespace"),
    [*((name, blanks) for name in LIBRARIES for blanks in (" ?", None)), ("llguidance", "")],
)
def test_finished_answers_have_no_more_white_space_than_is_asked_for(name, whitespace):
    random, num_answers = Random(0), 0
    for _ in range(30):
        schema = SchemaWriter(random).document()
        with suppress(InvalidGuide):
            compiled = library(name).compile("json_schema", json.dumps(schema), whitespace)
            for answer in answers(library(name).load(compiled), 0):
                text = answer.decode(errors="replace")
                assert fault_of(schema, text) is None, (json.dumps(schema), text)
                gaps = re.findall(r"\s+", STRINGS.sub('""', text))
                allowed = r"\s?" if whitespace is None else whitespace
                assert all(re.fullmatch(allowed, gap) for gap in gaps), text
                num_answers += 1
    assert num_answers > 10


def test_xgrammar_refuses_white_space_that_it_cannot_leave_out() -> None:
    for whitespace in ("", r"\n*", " +"):
        with pytest.raises(InvalidGuide, match="white space"):
            library("xgrammar").compile("json_object", "", whitespace)


def test_most_random_schemas_are_followed_by_one_library_at_least():
    random = Random(0)
    texts = [json.dumps(SchemaWriter(random).document()) for _ in range(60)]
    followed = {name: {text for text in texts if grammar_of(name, "json_schema", text)} for name in LIBRARIES}
    assert len(followed["xgrammar"] | followed["llguidance"]) > 30
    assert min(map(len, followed.values())) > 15


def check_matches(name: str, kind: str, guide: str, judge: re.Pattern[str], random: Random) -> None:
    """Whatever a library follows, its answers and the texts that it takes match an expression."""
    texts = ["".join(random.choices('ab1-.\n é^\\/]c#|"Ω', k=random.randint(0, 4))) for _ in range(40)]
    grammar = grammar_of(name, kind, guide)
    if grammar is None:
        return
    taken = [text for text in texts if is_taken(grammar, text)]
    for text in [*(answer.decode() for answer in answers(grammar, 0)), *taken]:
        assert judge.fullmatch(text), (guide, text)


@pytest.mark.parametrize("seed", long_but(range(10), range(20)))
@pytest.mark.parametrize("name", LIBRARIES)
def test_finished_answers_match_a_random_regular_expression(name, seed):
    random = Random(seed)
    for _ in range(8):
        expression = random_regex(random)
        with warnings.catch_warnings(), suppress(re.error):
            warnings.simplefilter("ignore")
            check_matches(name, "regex", expression, re.compile(expression, re.ASCII), random)


@pytest.mark.parametrize("name", LIBRARIES)
@pytest.mark.parametrize("expression", [".", "[^a]", "[^-]", r"\S", r"\D", r"\W"])
def test_half_a_surrogate_pair_is_no_character(name, expression):
    grammar = library(name).load(library(name).compile("regex", expression))
    for bytes_of_it in (b"\xed\xa0\x80", b"\xed\xbf\xbf"):
        matcher = grammar.start([END])
        assert not all(map(matcher.accept, bytes_of_it))


@pytest.mark.parametrize("seed", long_but(range(5), range(10)))
@pytest.mark.parametrize("name", LIBRARIES)
def test_finished_answers_match_a_random_grammar(name, seed):
    random = Random(seed)
    for _ in range(8):
        grammar, expression = random_grammar(random)
        check_matches(name, "ebnf_grammar", grammar, re.compile(expression), random)
