from __future__ import annotations

import json

import pytest
from hypothesis import given, strategies as st

from enginewire.v1.json_text import MAX_BYTES, MAX_DEPTH, json_fault
from tests.server.validation.requests_to_check import seconds_of


@pytest.mark.parametrize("data", [b'"' + b'\\"' * 32_000, b'"a' * 32_000, b"\\" * 65_000, b'{"' * 32_000])
def test_json_made_to_be_slow_is_not(data: bytes) -> None:
    assert json_fault(data, must_be_object=True)
    assert min(seconds_of(lambda: json_fault(data, must_be_object=True)) for _ in range(3)) < 0.1


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(JSON)
def test_whatever_json_writes_is_json(value: object) -> None:
    fault = json_fault(json.dumps(value).encode(), must_be_object=True)
    assert fault == (None if isinstance(value, dict) else "must be a JSON object")


@given(st.binary(max_size=200) | st.text(alphabet='{}[]",:1a\\', max_size=200).map(str.encode))
def test_what_json_cannot_read_is_a_fault_and_never_an_exception(data: bytes) -> None:
    try:
        is_object = isinstance(json.loads(data.decode(), parse_constant=_not_json), dict)
    except ValueError:
        is_object = False
    assert (json_fault(data, must_be_object=True) is None) == is_object


def _not_json(name: str) -> None:
    raise ValueError(name)


def test_json_may_be_as_deep_as_it_says() -> None:
    assert json_fault("[" * MAX_DEPTH + "]" * MAX_DEPTH, must_be_object=False) is None
    assert json_fault("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1), must_be_object=False) is not None


def test_json_is_measured_in_bytes() -> None:
    text = '"' + "é" * (MAX_BYTES // 2 - 1) + '"'
    for value in (text, text.encode()):
        assert json_fault(value, must_be_object=False) is None
    for value in (text[:-1] + 'a"', (text[:-1] + 'a"').encode()):
        assert (
            json_fault(value, must_be_object=False)
            == f"too long, got {MAX_BYTES + 1} bytes, allowed 0..{MAX_BYTES}"
        )
