"""Reserved metadata keys become routing hints, or a rejection that names the key."""

from __future__ import annotations

import pytest

from enginewire import v1 as pb
from enginewire.server.failures import InvalidRequest
from enginewire.server.services.call_metadata import apply_metadata

BOTH = pb.Capabilities(priority=True, data_parallel=True)


def routing_of(
    metadata: dict[str, str], capabilities: pb.Capabilities = BOTH, **body: object
) -> pb.RoutingHints:
    request = pb.GenerateRequest(request=pb.PreprocessedRequest(routing=pb.RoutingHints(**body)))
    apply_metadata(request, metadata, capabilities)
    return request.request.routing


@pytest.mark.parametrize(
    ("key", "text", "field", "value"),
    [
        ("enginewire-dp-rank", "3", "dp_rank", 3),
        ("enginewire-priority", "-7", "priority", -7),
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
    ],
)
def test_a_key_that_disagrees_with_the_body_is_refused_by_field(key, text, body):
    with pytest.raises(InvalidRequest) as caught:
        routing_of({key: text}, **body)
    assert caught.value.field == f"routing.{next(iter(body))}"


@pytest.mark.parametrize(
    ("key", "capabilities"),
    [
        ("enginewire-dp-rank", pb.Capabilities(priority=True)),
        ("enginewire-priority", pb.Capabilities(data_parallel=True)),
        ("enginewire-routing-key", BOTH),
    ],
)
@pytest.mark.parametrize("text", ["3", "", "high"])
def test_a_key_of_no_capability_is_unknown_metadata(key, text, capabilities):
    body = {"dp_rank": 0, "priority": 0, "routing_key": "k"}
    assert routing_of({key: text}, capabilities, **body) == pb.RoutingHints(**body)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "high",
        "1.5",
        "-1",
        "1_0",
        " 10",
        "+10",
        "10\n",
        "\u0661\u0660",
        "4294967296",
        "9" * 5000,
        "\x1b[31m",
    ],
)
def test_a_rank_that_is_no_rank_is_refused_by_key(text):
    with pytest.raises(InvalidRequest) as caught:
        routing_of({"enginewire-dp-rank": text})
    assert caught.value.field == "enginewire-dp-rank"
    assert "\x1b" not in str(caught.value)


def test_other_keys_change_nothing():
    request = pb.GenerateRequest()
    keys = {"traceparent": "00-garbage", "x-anything": "1", "enginewire-unheard-of": "2"}
    apply_metadata(request, keys, BOTH)
    assert request == pb.GenerateRequest()
