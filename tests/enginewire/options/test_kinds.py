from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given, strategies as st

from enginewire.options.kinds import OptionError, kind_of

KINDS = [
    kind_of(bool),
    kind_of(int, at_least=0, at_most=65535),
    kind_of(int | None, is_size=True),
    kind_of(float, at_least=0),
    kind_of(str),
    kind_of(Path | None),
    kind_of(Literal["red", "blue"]),
    kind_of(tuple[str, ...]),
    kind_of(tuple[int, ...]),
]
DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (kind_of(bool), "ON", True),
        (kind_of(bool), "no", False),
        (kind_of(int), "-7", -7),
        (kind_of(int, is_size=True), "8MiB", 8_388_608),
        (kind_of(int, is_size=True), "12", 12),
        (kind_of(float), "2", 2.0),
        (kind_of(str), "", ""),
        (kind_of(Path), "a/b", Path("a/b")),
        (kind_of(Path), "~", Path.home()),
        (kind_of(Literal["red", "blue"]), "blue", "blue"),
        (kind_of(tuple[str, ...]), "a, b", ("a", "b")),
        (kind_of(tuple[int, ...] | None), "1,2", (1, 2)),
    ],
)
def test_text_becomes_a_value(kind, text, value) -> None:
    assert kind.from_text(text) == value
    assert type(kind.from_text(text)) is type(value)


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        (kind_of(bool), "maybe", "must be one of true, 1, yes, on, false, 0, no, off, got 'maybe'"),
        (kind_of(int), "1.5", "must be a whole number, got '1.5'"),
        (kind_of(int, at_least=1), "0", "must be a whole number, at least 1, got 0"),
        (kind_of(int, at_most=9), "10", "must be a whole number, at most 9, got 10"),
        (kind_of(int, at_least=0, at_most=2**64 - 1), "-1", "from 0 to 18446744073709551615, got -1"),
        (kind_of(int, is_size=True), "8MB", "such as 1048576 or 8MiB, got '8MB'"),
        (kind_of(int, is_size=True), "-8", "got '-8'"),
        (kind_of(float), "nan", "must be a number, got nan"),
        (kind_of(float), "inf", "must be a number, got inf"),
        (kind_of(Literal["red", "blue"]), "green", "must be one of red, blue, got 'green'"),
        (kind_of(tuple[int, ...]), "1,x", "must be a list, each a whole number, got 'x'"),
        (kind_of(Path), "", "must be a path, got ''"),
        (kind_of(Path), "~nobody-of-that-name/x", "must be a path"),
        (kind_of(str), "\udcff", r"must be UTF-8 text without NUL, got '\udcff'"),
        (kind_of(str), "x" * 64 + "\0", "…"),
    ],
)
def test_a_wrong_text_is_refused_with_what_is_allowed(kind, text, message) -> None:
    with pytest.raises(OptionError) as caught:
        kind.from_text(text)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "document", "value"),
    [
        (kind_of(bool), True, True),
        (kind_of(int), 5, 5),
        (kind_of(int, is_size=True), "1KiB", 1024),
        (kind_of(int, is_size=True), 1024, 1024),
        (kind_of(float), 2, 2.0),
        (kind_of(Path), "a", Path("a")),
        (kind_of(int | None), None, None),
        (kind_of(tuple[int, ...]), [1, 2], (1, 2)),
    ],
)
def test_a_document_value_becomes_a_value(kind, document, value) -> None:
    assert kind.from_document(document) == value
    assert type(kind.from_document(document)) is type(value)


@pytest.mark.parametrize(
    ("kind", "document"),
    [
        (kind_of(int), True),
        (kind_of(int), "5"),
        (kind_of(int), 5.0),
        (kind_of(int), None),
        (kind_of(bool), 1),
        (kind_of(float), float("inf")),
        (kind_of(float), 10**400),
        (kind_of(str), 5),
        (kind_of(Path), ["a"]),
        (kind_of(tuple[str, ...]), "a"),
        (kind_of(tuple[str, ...]), [1]),
        (kind_of(Literal["red", "blue"]), "green"),
    ],
)
def test_a_document_value_of_another_type_is_refused(kind, document) -> None:
    with pytest.raises(OptionError):
        kind.from_document(document)


@given(st.sampled_from(KINDS), st.text())
def test_any_text_is_a_value_or_an_option_error(kind, text) -> None:
    try:
        value = kind.from_text(text)
    except OptionError:
        return
    assert isinstance(value, tuple if kind.many else kind.base)


@given(st.sampled_from(KINDS), DOCUMENTS)
def test_any_document_value_is_a_value_or_an_option_error(kind, document) -> None:
    try:
        value = kind.from_document(document)
    except OptionError:
        return
    assert (value is None and kind.optional) or isinstance(value, tuple if kind.many else kind.base)


@pytest.mark.parametrize("annotation", [bytes, dict[str, str], int | str, tuple[int, int]])
def test_a_type_that_no_option_has_is_our_mistake(annotation) -> None:
    with pytest.raises(AssertionError):
        kind_of(annotation)
