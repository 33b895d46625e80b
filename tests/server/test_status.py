"""From failures to gRPC status: the same facts in every detail, nothing leaked."""

from __future__ import annotations

import pytest
from google.protobuf.message import Message
from google.rpc import error_details_pb2
from hypothesis import given, strategies as st

from enginewire import v1 as pb
from enginewire.server import failures, status
from enginewire.server.failures import EngineError, InvalidRequest, QueueFull, StepFailed
from tests.server.serving import checked_detail

FAILURES = [
    kind
    for kind in vars(failures).values()
    if isinstance(kind, type) and issubclass(kind, EngineError) and kind is not EngineError
]


def unpacked(found: pb.Status, kind: type[Message]) -> list[Message]:
    messages = []
    for packed in found.details:
        message = kind()
        if packed.Unpack(message):
            messages.append(message)
    return messages


@pytest.mark.parametrize("kind", FAILURES)
def test_every_failure_travels_with_its_reason_and_whether_a_retry_may_help(kind):
    detail = checked_detail(status.to_status(kind("no")))
    assert detail.reason == kind.reason
    assert detail.retryable == kind.retryable


def test_a_field_is_named_to_our_tools_and_to_googles():
    found = status.to_status(InvalidRequest("token_ids: must not be empty", field="token_ids"))
    [detail] = unpacked(found, pb.ErrorDetail)
    [violations] = unpacked(found, error_details_pb2.BadRequest)
    assert detail.field == "token_ids"
    assert [v.field for v in violations.field_violations] == ["token_ids"]


def test_a_time_to_wait_is_in_both_details_and_in_the_pushback_trailer():
    failure = QueueFull("full", retry_after=1.25, metadata={"limit": "32"})
    trailers = dict(status.trailers(failure))
    found = pb.Status.FromString(trailers[status.DETAILS_KEY])
    [detail] = unpacked(found, pb.ErrorDetail)
    [retry] = unpacked(found, error_details_pb2.RetryInfo)
    [info] = unpacked(found, error_details_pb2.ErrorInfo)
    assert trailers[status.PUSHBACK_KEY] == "1250"
    assert detail.retry_after.ToMilliseconds() == retry.retry_delay.ToMilliseconds() == 1250
    assert dict(detail.metadata) == dict(info.metadata) == {"limit": "32"}


def test_without_a_time_to_wait_there_is_no_pushback():
    assert status.PUSHBACK_KEY not in dict(status.trailers(StepFailed("no")))


def test_an_unexpected_exception_leaves_an_id_in_the_message_and_the_rest_in_the_log(caplog):
    failure = status.as_failure(RuntimeError("/home/secret.pem"))
    assert failure.reason == pb.ERROR_REASON_INTERNAL
    assert "secret" not in str(failure)
    assert failure.metadata["error_id"] in caplog.text
    assert "/home/secret.pem" in caplog.text


def test_a_failure_is_reported_as_it_is():
    failure = StepFailed("no")
    assert status.as_failure(failure) is failure


@given(st.text(max_size=3000))
def test_whatever_a_caller_wrote_fits_into_the_trailers_as_one_printable_line(text):
    failure = InvalidRequest(text, field="request_id", retry_after=1.0)
    checked_detail(status.to_status(failure))
    assert len(dict(status.trailers(failure))[status.DETAILS_KEY]) <= 4096
