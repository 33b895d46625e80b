"""What becomes of the status with which a bare engine ends a call."""

from __future__ import annotations

import grpc
import pytest
from google.protobuf.any_pb2 import Any
from hypothesis import given, strategies as st

from enginewire import v1 as pb
from enginewire.server.engines.upstream.failure import MOST_WORDS, failure_of, is_lost, shown
from enginewire.server.failures import (
    DeadlineExceeded,
    EngineDead,
    EngineError,
    EngineMistake,
    InvalidRequest,
    KvExhausted,
)
from enginewire.server.status import DETAILS_KEY

SECRET = "/home/somebody"


def ended(
    code: grpc.StatusCode, *trailing: tuple[str, str | bytes], words: str | None = SECRET
) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(*trailing), words)


def detail(**fields: object) -> tuple[str, bytes]:
    """As an engine sends it that speaks of something else first."""
    packed = Any()
    packed.Pack(pb.ErrorDetail(**fields))
    return DETAILS_KEY, pb.Status(details=[Any(type_url="types/of.others"), packed]).SerializeToString()


KV_EXHAUSTED = detail(reason=pb.ERROR_REASON_KV_EXHAUSTED)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ended(grpc.StatusCode.DEADLINE_EXCEEDED), DeadlineExceeded),
        (ended(grpc.StatusCode.UNAVAILABLE), EngineDead),
        (ended(grpc.StatusCode.CANCELLED), EngineDead),
        (ended(grpc.StatusCode.INVALID_ARGUMENT), InvalidRequest),
        (ended(grpc.StatusCode.RESOURCE_EXHAUSTED, KV_EXHAUSTED), KvExhausted),
        (ended(grpc.StatusCode.RESOURCE_EXHAUSTED), EngineMistake),
        (ended(grpc.StatusCode.INTERNAL, KV_EXHAUSTED), EngineMistake),
    ],
    ids=lambda each: each.code().name if isinstance(each, grpc.aio.AioRpcError) else "",
)
def test_a_status_has_a_meaning(error: grpc.aio.AioRpcError, kind: type[EngineError]) -> None:
    assert type(failure_of(error, "r")) is kind


@pytest.mark.parametrize(
    ("field", "told"),
    [("sampling_options.stop[0]", "sampling_options.stop[0]"), (SECRET, ""), ("x" * 129, ""), ("", "")],
)
def test_the_field_that_an_engine_names_is_told_if_it_looks_like_one(field: str, told: str) -> None:
    failure = failure_of(ended(grpc.StatusCode.INVALID_ARGUMENT, detail(field=field)), "r")
    assert (failure.field, str(failure)) == (told, f"{told or 'request'}: the engine cannot serve this")


def test_a_connection_may_be_lost_where_nobody_gives_a_reason() -> None:
    draining = detail(reason=pb.ERROR_REASON_DRAINING)
    assert is_lost(ended(grpc.StatusCode.UNAVAILABLE))
    assert is_lost(ended(grpc.StatusCode.CANCELLED, ("x-other", "y")))
    assert not is_lost(ended(grpc.StatusCode.UNAVAILABLE, draining))
    assert not is_lost(ended(grpc.StatusCode.INTERNAL))


@given(code=st.sampled_from(grpc.StatusCode), status=st.binary(max_size=60) | st.just(KV_EXHAUSTED[1][:-3]))
def test_whatever_is_sent_as_a_detail_the_request_fails_as_without(
    code: grpc.StatusCode, status: bytes
) -> None:
    plain, odd = failure_of(ended(code), "r"), failure_of(ended(code, (DETAILS_KEY, status)), "r")
    assert (type(odd), odd.field) == (type(plain), plain.field)


@given(words=st.none() | st.text(max_size=2 * MOST_WORDS))
def test_an_operator_gets_one_line_of_bounded_length(words: str | None) -> None:
    line = shown(ended(grpc.StatusCode.UNKNOWN, words=words))
    assert line.startswith("UNKNOWN: ")
    assert line.isprintable()
    assert line.isascii()
    assert len(line) <= len("UNKNOWN: ") + MOST_WORDS * len(r"\U0001f300")
