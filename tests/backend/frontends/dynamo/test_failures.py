from __future__ import annotations

import pytest

from enginewire import v1 as pb
from enginewire.backend.engines.failure import KNOWN_REASONS, Failure
from enginewire.backend.frontends.dynamo.failures import EXCEPTION_NAMES, RETRIED, exception_name

ELSEWHERE = {
    pb.ERROR_REASON_QUEUE_FULL,
    pb.ERROR_REASON_DRAINING,
    pb.ERROR_REASON_NOT_STARTED,
    pb.ERROR_REASON_ENGINE_DEAD,
    pb.ERROR_REASON_STUCK,
    pb.ERROR_REASON_STREAM_INCOMPLETE,
}


@pytest.mark.parametrize("reason", sorted(KNOWN_REASONS), ids=pb.ErrorReason.Name)
def test_only_what_another_engine_can_do_is_tried_there(reason: pb.ErrorReason.ValueType) -> None:
    name = exception_name(Failure(13, reason, ""), can_go_on=True)
    assert name in EXCEPTION_NAMES
    assert (name in RETRIED) == (reason in ELSEWHERE)


def test_an_answer_that_cannot_go_on_is_tried_nowhere() -> None:
    for reason in ELSEWHERE:
        assert exception_name(Failure(14, reason, ""), can_go_on=False) == "Unknown"
    assert (
        exception_name(Failure(3, pb.ERROR_REASON_INVALID_REQUEST, ""), can_go_on=False) == "InvalidArgument"
    )
