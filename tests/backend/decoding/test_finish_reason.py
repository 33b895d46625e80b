import pytest

from enginewire import v1 as pb
from enginewire.backend.decoding.finish_reason import (
    finish_reason,
    is_known,
    openai_finish_reason,
    stop_reason,
)
from enginewire.backend.decoding.stop_conditions import (
    EosTokenDetected,
    HiddenStopSequenceDetected,
    HiddenStopTokenDetected,
    MaxTokensLimit,
    StopTrigger,
    VisibleStopSequenceDetected,
    VisibleStopTokenDetected,
)

GOES_ON, EOS, LENGTH, STOP = range(4)
ERROR, CANCELLED, CONTENT_FILTER = 4, 5, 6
SEQUENCE = HiddenStopSequenceDetected("x")


@pytest.mark.parametrize(
    ("trigger", "engine", "expected"),
    [
        (None, GOES_ON, GOES_ON),
        (None, LENGTH, LENGTH),
        (MaxTokensLimit(), GOES_ON, LENGTH),
        (MaxTokensLimit(), EOS, EOS),
        (EosTokenDetected(1), GOES_ON, EOS),
        (EosTokenDetected(1), LENGTH, EOS),
        (HiddenStopTokenDetected(1), GOES_ON, STOP),
        (VisibleStopTokenDetected(1), GOES_ON, STOP),
        (SEQUENCE, GOES_ON, STOP),
        (SEQUENCE, LENGTH, STOP),
        (SEQUENCE, EOS, STOP),
        (VisibleStopSequenceDetected("x"), GOES_ON, STOP),
        (SEQUENCE, ERROR, ERROR),
        (SEQUENCE, CANCELLED, CANCELLED),
        (SEQUENCE, CONTENT_FILTER, CONTENT_FILTER),
    ],
)
def test_a_failure_wins_then_a_stop_then_the_engine(
    trigger: StopTrigger | None, engine: pb.FinishReason.ValueType, expected: pb.FinishReason.ValueType
) -> None:
    assert finish_reason(trigger, engine) == expected


@pytest.mark.parametrize(
    ("trigger", "expected"),
    [
        (None, None),
        (MaxTokensLimit(), None),
        (EosTokenDetected(1), None),
        (HiddenStopTokenDetected(1), 1),
        (VisibleStopTokenDetected(2), 2),
        (HiddenStopSequenceDetected("x"), "x"),
        (VisibleStopSequenceDetected("y"), "y"),
    ],
)
def test_stop_reason_names_only_what_the_caller_asked_for(
    trigger: StopTrigger | None, expected: str | int | None
) -> None:
    assert stop_reason(trigger) == expected


def test_row_16_cancelled_and_error_are_no_normal_finish() -> None:
    spoken = [openai_finish_reason(reason) for reason in pb.FinishReason.values()]
    assert spoken == [None, "stop", "length", "stop", "error", None, "content_filter"]


def test_row_16_an_unknown_reason_is_not_known() -> None:
    assert not is_known(99)
    assert is_known(CONTENT_FILTER)
