"""What a backend passes on unread has bounds; which fields those are comes from the contract."""

from __future__ import annotations

import pytest

from enginewire import v1 as pb
from enginewire.backend.engines.failure import RequestFailed
from enginewire.backend.engines.opaque_fields import BOUNDED, check_opaque

MOST = 65536


def json(size: int) -> bytes:
    return b'{"": "%s"}' % (b"x" * (size - 8))


def test_the_bounded_ones_are_those_of_the_contract() -> None:
    assert [rule.path for _, rule in BOUNDED] == [
        "annotations",
        "router_config_override.extra",
        "prefill_result.disaggregated_params",
        "extra_args",
        "agent_context.extra",
        "mm_processor_kwargs",
    ]


@pytest.mark.parametrize(
    "request_",
    [
        pb.PreprocessedRequest(),
        pb.PreprocessedRequest(annotations=["é" * 512] * 64),
        pb.PreprocessedRequest(extra_args=json(MOST), agent_context=pb.AgentContext(extra=b"{}")),
        pb.PreprocessedRequest(prefill_result=pb.PrefillResult(disaggregated_params=b"[1]")),
    ],
    ids=["empty", "annotations", "objects", "any value"],
)
def test_what_is_within_its_bounds_passes(request_: pb.PreprocessedRequest) -> None:
    check_opaque(request_)


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (pb.PreprocessedRequest(annotations=["a"] * 65), "annotations"),
        (pb.PreprocessedRequest(annotations=["a", "é" * 513]), "annotations"),
        (pb.PreprocessedRequest(extra_args=json(MOST + 1)), "extra_args"),
        (pb.PreprocessedRequest(extra_args=b"[1]"), "extra_args"),
        (pb.PreprocessedRequest(extra_args=b'{"a":' * 65 + b"1" + b"}" * 65), "extra_args"),
        (pb.PreprocessedRequest(agent_context=pb.AgentContext(extra=b"{")), "agent_context.extra"),
    ],
    ids=["many", "long", "large", "no object", "deep", "no JSON"],
)
def test_what_is_beyond_them_is_refused_by_its_name(request_: pb.PreprocessedRequest, field: str) -> None:
    with pytest.raises(RequestFailed) as refusal:
        check_opaque(request_)
    failure = refusal.value.failure
    assert (failure.code, failure.field, failure.retryable) == (3, field, False)
