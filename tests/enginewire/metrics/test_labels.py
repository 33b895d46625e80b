"""The words of metrics."""

from __future__ import annotations

from enginewire import v1 as pb
from enginewire.metrics.labels import FINISHED, reason_name


def test_every_finish_reason_has_a_word() -> None:
    assert set(FINISHED) == set(pb.FinishReason.values()) - {pb.FINISH_REASON_UNSPECIFIED}


def test_reasons_are_the_contract_s_and_new_ones_are_unknown() -> None:
    assert reason_name(pb.ERROR_REASON_QUEUE_FULL) == "queue_full"
    assert reason_name(max(pb.ErrorReason.values()) + 1) == "unknown"
