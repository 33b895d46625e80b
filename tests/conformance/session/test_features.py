"""The tables of features, bounds and ranges are about fields that there are."""

from __future__ import annotations

import json

import pytest

from enginewire import v1 as pb
from enginewire.conformance.session.features import BOUNDS, RANGES, Bound
from enginewire.conformance.session.requests import change, good_request


def size(value: object) -> int:
    """A number itself, the bytes of a single text, or how many entries there are."""
    match value:
        case int():
            return value
        case [str() as text]:
            return len(text)
        case bytes() | list():
            return len(value)
    raise TypeError(value)


@pytest.mark.parametrize("bound", BOUNDS, ids=lambda bound: bound.field)
def test_one_more_is_one_more(bound: Bound) -> None:
    for count in (11, 12):
        value = bound.make(count)
        change(good_request("size", [1]), **{bound.field: value})
        assert size(value) == count


def test_bounds_name_limits_and_capabilities_that_there_are() -> None:
    for bound in BOUNDS:
        assert not bound.limit or bound.limit in pb.Limits.DESCRIPTOR.fields_by_name
        assert not bound.capability or bound.capability in pb.Capabilities.DESCRIPTOR.fields_by_name


def test_opaque_json_of_any_size_is_json() -> None:
    (bound,) = (bound for bound in BOUNDS if bound.field == "extra_args")
    value = bound.make(65536)
    assert isinstance(value, bytes)
    assert len(value) == 65536
    assert isinstance(json.loads(value), dict)


def test_ends_of_ranges_can_be_sent() -> None:
    for name, _, values in RANGES:
        for value in values:
            change(good_request("end", [1]), **{name: value})
