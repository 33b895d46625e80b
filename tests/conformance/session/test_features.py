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
            return len(text.encode())
        case bytes() | list():
            return len(value)
        case pb.GuidedDecoding():
            kind = value.WhichOneof("guide") or ""
            texts = value.choice.choices if kind == "choice" else [getattr(value, kind)]
            return sum(len(text.encode()) for text in texts)
        case pb.AgentContext() | pb.RouterConfigOverride():
            return len(value.extra)
    raise TypeError(value)


@pytest.mark.parametrize("bound", BOUNDS, ids=lambda bound: bound.rule.path)
def test_one_more_is_one_more(bound: Bound) -> None:
    for count in (61, 62, 127, 128):
        value = bound.make(count)
        change(good_request("size", [1]), **{bound.field: value})
        assert size(value) == count


def test_bounds_name_limits_and_capabilities_that_there_are() -> None:
    for bound in BOUNDS:
        limit, capability = bound.rule.limit, bound.rule.capability
        assert not limit or limit in pb.Limits.DESCRIPTOR.fields_by_name
        assert not capability or capability in pb.Capabilities.DESCRIPTOR.fields_by_name


def test_the_most_is_the_limit_or_the_contracts_own_and_of_tokens_no_more_than_there_are() -> None:
    most = {bound.field: bound for bound in BOUNDS}["prompt_logprobs"].most
    assert most(pb.EngineConfig(vocab_size=128)) == 20
    assert most(pb.EngineConfig(vocab_size=12)) == 12
    assert most(pb.EngineConfig(vocab_size=12, limits=pb.Limits(max_prompt_logprobs=3))) == 3
    (entry,) = (bound for bound in BOUNDS if bound.field == "stop" and bound.is_of_entries)
    assert entry.most(pb.EngineConfig()) == entry.rule.max_entry_bytes


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
