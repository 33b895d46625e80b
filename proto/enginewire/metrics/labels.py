"""The values of labels on metrics: vLLM's words where it has them, else the contract's.

Shared by every program that exports metrics, so that their series can be compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from enginewire import v1 as pb

# vLLM's words, which dashboards know.
FINISHED: Final[Mapping[pb.FinishReason.ValueType, str]] = {
    pb.FINISH_REASON_EOS: "stop",
    pb.FINISH_REASON_STOP: "stop",
    pb.FINISH_REASON_LENGTH: "length",
    pb.FINISH_REASON_CANCELLED: "abort",
    pb.FINISH_REASON_CONTENT_FILTER: "content_filter",
    pb.FINISH_REASON_ERROR: "error",
}


def reason_name(reason: pb.ErrorReason.ValueType) -> str:
    """`queue_full` and so on; `unknown` for what a newer engine made up."""
    if reason not in pb.ErrorReason.values():
        return "unknown"
    return pb.ErrorReason.Name(reason).removeprefix("ERROR_REASON_").lower()
