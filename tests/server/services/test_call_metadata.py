"""Reserved metadata keys become routing hints, or a rejection that names the key."""

from __future__ import annotations

import pytest

from enginewire import v1 as pb
from enginewire.server.failures import InvalidRequest
from enginewire.server.services.call_metadata import apply_metadata


def routing_of(metadata: dict[str, str], **body: object) -> pb.RoutingHints:
    request = pb.GenerateRequest(request=pb.PreprocessedRequest(routing=pb.RoutingHints(**body)))
    apply_metadata(request, metadata)
    return request.request.routing


@pytest.mark.parametrize(
    ("key", "text", "field", "value"),
    [
        ("enginewire-dp-rank", "3", "dp_rank", 3),
        ("enginewire-priority", "-7", "priority", -7),
        ("enginewire-routing-key", "a b", "routing_key", "a b"),
    ],
)
def test_a_reserved_key_sets_its_field(key, text, field, value):
    routing = routing_of({key: text})
    assert getattr(routing, field) == value
    assert len(routing.ListFields()) == 1


def test_a_key_may_repeat_what_the_body_says():
    assert routing_of({"enginewire-dp-rank": "0"}, dp_rank=0).dp_rank == 0


@pytest.mark.parametrize(
    ("key", "text", "body"),
    [
        ("enginewire-dp-rank", "1", {"dp_rank": 0}),
        ("enginewire-priority", "0", {"priority": 1}),
        ("enginewire-routing-key", "a", {"routing_key": "b"}),
    ],
)
def test_a_key_that_disagrees_with_the_body_is_refused_by_field(key, text, body):
    with pytest.raises(InvalidRequest) as caught:
        routing_of({key: text}, **body)
    assert caught.value.field == f"routing.{next(iter(body))}"


@pytest.mark.parametrize("text", ["", "high", "1.5", "-1", "4294967296", "9" * 5000, "\x1b[31m"])
def test_a_rank_that_is_no_rank_is_refused_by_key(text):
    with pytest.raises(InvalidRequest) as caught:
        routing_of({"enginewire-dp-rank": text})
    assert caught.value.field == "enginewire-dp-rank"
    assert "\x1b" not in str(caught.value)


def test_other_keys_change_nothing():
    request = pb.GenerateRequest()
    apply_metadata(request, {"traceparent": "00-garbage", "x-anything": "1", "enginewire-unheard-of": "2"})
    assert request == pb.GenerateRequest()
