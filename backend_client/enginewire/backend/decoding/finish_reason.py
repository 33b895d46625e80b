"""Why a choice ended: one table from what stopped it to what callers are told.

Holds the precedence between the engine's word and the backend's own stop conditions. Knows nothing
about decoding or transport.
"""

from __future__ import annotations

from enginewire import v1 as pb
from enginewire.backend.decoding.stop_conditions import (
    EosTokenDetected,
    HiddenStopSequenceDetected,
    HiddenStopTokenDetected,
    MaxTokensLimit,
    StopTrigger,
    VisibleStopSequenceDetected,
    VisibleStopTokenDetected,
)

OF_TRIGGER: dict[type[StopTrigger], pb.FinishReason.ValueType] = {
    MaxTokensLimit: pb.FINISH_REASON_LENGTH,
    EosTokenDetected: pb.FINISH_REASON_EOS,
    HiddenStopTokenDetected: pb.FINISH_REASON_STOP,
    VisibleStopTokenDetected: pb.FINISH_REASON_STOP,
    HiddenStopSequenceDetected: pb.FINISH_REASON_STOP,
    VisibleStopSequenceDetected: pb.FINISH_REASON_STOP,
}

# The engine's word stands, whatever the backend found in the same output.
FINAL = {pb.FINISH_REASON_ERROR, pb.FINISH_REASON_CANCELLED, pb.FINISH_REASON_CONTENT_FILTER}

# A cancelled choice has no normal finish: the caller went away or asked for it.
OF_OPENAI: dict[pb.FinishReason.ValueType, str] = {
    pb.FINISH_REASON_EOS: "stop",
    pb.FINISH_REASON_STOP: "stop",
    pb.FINISH_REASON_LENGTH: "length",
    pb.FINISH_REASON_CONTENT_FILTER: "content_filter",
    pb.FINISH_REASON_ERROR: "error",
}


def is_known(reason: int) -> bool:
    """False for a value that a newer or broken engine made up."""
    return reason in pb.FinishReason.values()


def finish_reason(
    trigger: StopTrigger | None, engine: pb.FinishReason.ValueType
) -> pb.FinishReason.ValueType:
    """What ended the choice; UNSPECIFIED when nothing did.

    `engine` is the reason on the engine's output. Its failures win over any stop, and its own stop
    wins over max_tokens when both fall on the same token; every other trigger wins over the engine.
    """
    if trigger is None or engine in FINAL:
        return engine
    if isinstance(trigger, MaxTokensLimit) and engine != pb.FINISH_REASON_UNSPECIFIED:
        return engine
    return OF_TRIGGER[type(trigger)]


def stop_reason(trigger: StopTrigger | None) -> str | int | None:
    """The caller's own stop string or token id that matched, never the system's end of sequence."""
    match trigger:
        case HiddenStopSequenceDetected(stop) | VisibleStopSequenceDetected(stop):
            return stop
        case HiddenStopTokenDetected(token_id) | VisibleStopTokenDetected(token_id):
            return token_id
    return None


def openai_finish_reason(reason: pb.FinishReason.ValueType) -> str | None:
    """The string of the OpenAI API; None while the choice goes on and when it was cancelled."""
    return OF_OPENAI.get(reason)
