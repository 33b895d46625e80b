"""An engine's failure as one of Dynamo's exceptions, by the name that it has there.

Sans-IO. The name decides what the frontend does: whether the request goes to another worker, and what its
caller is told.
"""

from __future__ import annotations

from typing import Final, Literal, get_args

from enginewire import v1 as pb
from enginewire.backend.engines.failure import Failure

ExceptionName = Literal["InvalidArgument", "EngineShutdown", "CannotConnect", "Cancelled", "Unknown"]
"""A class of `dynamo.llm.exceptions`."""
EXCEPTION_NAMES: Final[tuple[ExceptionName, ...]] = get_args(ExceptionName)

NAMES: Final[dict[pb.ErrorReason.ValueType, ExceptionName]] = {
    # The caller is told the message, with 400.
    pb.ERROR_REASON_INVALID_REQUEST: "InvalidArgument",
    pb.ERROR_REASON_CONTEXT_EXCEEDED: "InvalidArgument",
    pb.ERROR_REASON_UNSUPPORTED: "InvalidArgument",
    pb.ERROR_REASON_MODEL_NOT_FOUND: "InvalidArgument",
    pb.ERROR_REASON_TOO_LARGE: "InvalidArgument",
    pb.ERROR_REASON_KV_EXHAUSTED: "InvalidArgument",
    # Tried elsewhere, and no request comes here for some seconds; 503 when there is nobody else.
    pb.ERROR_REASON_DRAINING: "EngineShutdown",
    pb.ERROR_REASON_ENGINE_DEAD: "EngineShutdown",
    pb.ERROR_REASON_STUCK: "EngineShutdown",
    pb.ERROR_REASON_NOT_STARTED: "EngineShutdown",
    pb.ERROR_REASON_STREAM_INCOMPLETE: "EngineShutdown",
    # Tried elsewhere, and others may still come here; 503 when everybody refuses.
    pb.ERROR_REASON_QUEUE_FULL: "CannotConnect",
    pb.ERROR_REASON_CANCELLED: "Cancelled",
}


RETRIED: Final = frozenset({"EngineShutdown", "CannotConnect"})


def exception_name(failure: Failure, *, can_go_on: bool) -> ExceptionName:
    """What Dynamo calls it. Everything that is nobody's fault but ours is 500, without its message.

    Where the answer cannot go on, nobody is asked to: the frontend sends what has come as part of the prompt.
    """
    name = NAMES.get(failure.reason, "Unknown")
    return name if can_go_on or name not in RETRIED else "Unknown"
