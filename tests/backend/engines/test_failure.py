"""Every way in which a failure can be told, and what the backend makes of it."""

from __future__ import annotations

import grpc
import pytest
from google.protobuf.any_pb2 import Any
from google.protobuf.duration_pb2 import Duration
from hypothesis import given, strategies as st

from enginewire import v1 as pb
from enginewire.backend.engines.failure import (
    CODE_NUMBERS,
    DETAILS_KEY,
    KNOWN_REASONS,
    Failure,
    RequestFailed,
    failed,
    from_rpc_error,
    from_status,
    violation,
)
from enginewire.server import failures, status

FAILING_CODES = [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK]
RAISED_BY_ENGINES = [
    kind
    for kind in vars(failures).values()
    if isinstance(kind, type) and issubclass(kind, failures.EngineError)
]


def rpc_error(
    code: grpc.StatusCode, details: bytes | None = None, message: str = "no"
) -> grpc.aio.AioRpcError:
    trailers = grpc.aio.Metadata() if details is None else grpc.aio.Metadata((DETAILS_KEY, details))
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), trailers, message)


def with_detail(detail: pb.ErrorDetail, code: int = 13) -> pb.Status:
    found = pb.Status(code=code, message="no")
    found.details.add().Pack(detail)
    return found


@given(
    st.sampled_from(FAILING_CODES),
    st.sampled_from(sorted(KNOWN_REASONS)),
    st.text(st.characters(categories=["L", "N", "P"])),
    st.booleans(),
    st.none() | st.floats(0, 1e6),
)
def test_a_failure_survives_the_wire(code, reason, text, retryable, retry_after):
    retry_after = None if retry_after is None else round(retry_after, 6)
    failure = Failure(code.value[0], reason, text, retryable, text, retry_after)
    sent = pb.Status.FromString(failure.to_proto().SerializeToString())
    assert Failure.from_proto(sent) == failure
    assert from_status(sent).failure == failure
    assert from_rpc_error(rpc_error(code, sent.SerializeToString(), text)).failure == failure


@pytest.mark.parametrize("kind", RAISED_BY_ENGINES, ids=lambda kind: kind.__name__)
def test_what_the_server_raises_is_what_the_backend_reads(kind):
    raised = kind("it says why", field="token_ids", retry_after=1.5)
    read = from_status(status.to_status(raised))
    assert read.reason == raised.reason
    assert read.code is status.code_of_failure(raised)
    error_id = raised.metadata.get("error_id", "")
    says = f"internal error {error_id}: {raised}" if error_id else "it says why"
    assert read.failure == Failure(
        read.code.value[0], raised.reason, says, raised.retryable, "token_ids", 1.5, error_id
    )
    assert str(read) == says
    assert Failure.from_proto(read.status) == read.failure


@pytest.mark.parametrize("code", FAILING_CODES)
def test_a_bare_code_has_a_reason_and_only_a_lost_engine_is_retryable(code):
    failure = from_rpc_error(rpc_error(code)).failure
    assert failure.code == code.value[0]
    assert failure.reason in KNOWN_REASONS
    assert failure.retryable is (code.name in ("UNAVAILABLE", "UNKNOWN", "INTERNAL", "CANCELLED"))
    assert failure.retryable is (failure.reason == pb.ERROR_REASON_ENGINE_DEAD)
    assert (failure.field, failure.retry_after, failure.message) == ("", None, "no")


def test_grpc_itself_refuses_only_answers_once_the_engine_has_answered():
    error = rpc_error(grpc.StatusCode.RESOURCE_EXHAUSTED)
    assert from_rpc_error(error).reason == pb.ERROR_REASON_TOO_LARGE
    assert (
        from_rpc_error(error, is_accepted=True).failure == violation("a message above the size limit").failure
    )
    full = with_detail(pb.ErrorDetail(reason=pb.ERROR_REASON_QUEUE_FULL, retryable=True), 8)
    answered = rpc_error(grpc.StatusCode.RESOURCE_EXHAUSTED, full.SerializeToString())
    assert from_rpc_error(answered, is_accepted=True).reason == pb.ERROR_REASON_QUEUE_FULL


def test_the_code_of_the_call_wins_over_the_code_in_its_details():
    details = with_detail(pb.ErrorDetail(reason=pb.ERROR_REASON_DRAINING, retryable=True), code=0)
    found = from_rpc_error(rpc_error(grpc.StatusCode.UNAVAILABLE, details.SerializeToString()))
    assert found.code is grpc.StatusCode.UNAVAILABLE
    assert found.reason == pb.ERROR_REASON_DRAINING


@pytest.mark.parametrize("trailer", [b"\xff\xff", b"", pb.Status(code=13).SerializeToString()])
def test_broken_details_are_no_details(trailer):
    found = from_rpc_error(rpc_error(grpc.StatusCode.UNAVAILABLE, trailer)).failure
    assert found == Failure(14, pb.ERROR_REASON_ENGINE_DEAD, "no", retryable=True)


@pytest.mark.parametrize(
    "detail",
    [
        Any(type_url="type.googleapis.com/enginewire.v1.ErrorDetail", value=b"\xff"),
        Any(type_url="type.googleapis.com/what.ever", value=b"x"),
        Any(),
    ],
)
def test_a_detail_that_cannot_be_read_leaves_what_the_code_says(detail):
    found = from_status(pb.Status(code=5, message="no", details=[detail])).failure
    assert found == Failure(5, pb.ERROR_REASON_MODEL_NOT_FOUND, "no")


@pytest.mark.parametrize("reason", [pb.ERROR_REASON_UNSPECIFIED, 4711])
def test_a_reason_nobody_knows_is_what_the_code_says_and_keeps_the_rest(reason):
    detail = pb.ErrorDetail(reason=reason, retryable=True, field="token_ids")
    found = from_status(with_detail(detail)).failure
    assert found == Failure(13, pb.ERROR_REASON_INTERNAL, "no", retryable=True, field="token_ids")


@pytest.mark.parametrize("code", [0, 99, -1])
def test_a_failure_without_a_failing_code_is_a_violation(code):
    found = from_status(pb.Status(code=code, message="all is well"))
    assert found.failure == violation(f"a failure with status code {code}").failure
    assert found.code is grpc.StatusCode.INTERNAL


def test_text_of_an_engine_is_one_line_of_bounded_length():
    detail = pb.ErrorDetail(reason=pb.ERROR_REASON_INTERNAL, field="a\x1b[31m")
    sent = with_detail(detail)
    sent.message = "x\r\ny\u202e" + "z" * 10_000
    found = from_status(sent).failure
    assert found.message.startswith("x  y z")
    assert found.message.isprintable()
    assert len(found.message) == 4096
    assert found.field == "a [31m"


@pytest.mark.parametrize(
    ("sent", "read"), [(Duration(seconds=-5), 0.0), (Duration(nanos=250_000_000), 0.25), (Duration(), 0.0)]
)
def test_nobody_waits_for_the_past(sent, read):
    detail = pb.ErrorDetail(reason=pb.ERROR_REASON_QUEUE_FULL, retry_after=sent)
    assert from_status(with_detail(detail, 8)).failure.retry_after == read


def test_the_exception_says_what_the_value_says():
    error = failed(grpc.StatusCode.NOT_FOUND, pb.ERROR_REASON_MODEL_NOT_FOUND, "no such model", field="model")
    assert (error.code, error.reason, error.retryable) == (
        grpc.StatusCode.NOT_FOUND,
        pb.ERROR_REASON_MODEL_NOT_FOUND,
        False,
    )
    assert str(error) == "no such model"
    assert error.failure.field == "model"
    assert RequestFailed(error.failure).code in CODE_NUMBERS.values()
