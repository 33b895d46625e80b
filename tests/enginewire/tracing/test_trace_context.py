"""Which trace goes on with a request."""

from __future__ import annotations

import pytest

from enginewire import v1 as pb
from enginewire.tracing.trace_context import MAX_TRACESTATE, add_link, headers_of_link, passed_on

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
VALID = f"00-{TRACE}-{SPAN}-01"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {}),
        ({"authorization": "Bearer x", "traceparent": VALID}, {"traceparent": VALID}),
        ({"traceparent": VALID, "tracestate": "a=1"}, {"traceparent": VALID, "tracestate": "a=1"}),
        ({"traceparent": VALID, "tracestate": "a" * (MAX_TRACESTATE + 1)}, {"traceparent": VALID}),
        ({"tracestate": "a=1"}, {}),
    ],
)
def test_nothing_but_a_valid_trace_is_passed_on(given: dict[str, str], expected: dict[str, str]) -> None:
    assert passed_on(given) == expected


@pytest.mark.parametrize(
    "malformed",
    [
        "",
        "garbage",
        VALID.upper(),
        VALID + "\n",
        VALID + "-more",
        "ff" + VALID[2:],
        VALID.replace(TRACE, "0" * 32),
        VALID.replace(SPAN, "0" * 16),
    ],
)
def test_a_malformed_trace_is_ignored(malformed: str) -> None:
    part = pb.PreprocessedRequest()
    add_link(part, {"traceparent": malformed})
    assert passed_on({"traceparent": malformed}) == {}
    assert not part.HasField("migration_link")


def test_a_link_names_trace_and_span() -> None:
    part = pb.PreprocessedRequest()
    add_link(part, None)
    assert not part.HasField("migration_link")
    add_link(part, {"traceparent": VALID})
    assert part.migration_link == pb.TraceLink(trace_id=TRACE, span_id=SPAN)
    assert headers_of_link(part.migration_link) == {"traceparent": f"00-{TRACE}-{SPAN}-00"}


@pytest.mark.parametrize("link", [pb.TraceLink(), pb.TraceLink(trace_id="garbage", span_id=SPAN)])
def test_a_malformed_link_points_nowhere(link: pb.TraceLink) -> None:
    assert headers_of_link(link) == {}
