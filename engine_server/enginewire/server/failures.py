"""The ways a request can fail, as plain exceptions.

Holds no gRPC: `enginewire.v1.status_codes` has the code of each reason. Raise them anywhere
between the wire and the engine; every message names the field and what is allowed.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping
from typing import Final

from enginewire import v1 as pb

log = logging.getLogger(__name__)

ERROR_ID: Final = "error_id"
"""Key in `metadata` under which an internal failure has the id that its log line has too."""


class EngineError(Exception):
    """A request (or RPC) failed. `reason` is the machine-readable cause from the contract."""

    reason: pb.ErrorReason.ValueType = pb.ERROR_REASON_INTERNAL
    retryable: bool = False

    def __init__(
        self,
        message: str,
        *,
        field: str = "",
        retry_after: float | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        """`field` is a path below GenerateRequest.request; `retry_after` is in seconds."""
        super().__init__(message)
        self.field = field
        self.retry_after = retry_after
        self.metadata = dict(metadata or {})


class InvalidRequest(EngineError):
    """A field has a value that no engine may accept."""

    reason = pb.ERROR_REASON_INVALID_REQUEST


class ContextExceeded(InvalidRequest):
    """Prompt and output do not fit into the context window."""

    reason = pb.ERROR_REASON_CONTEXT_EXCEEDED


class Unsupported(EngineError):
    """The field is valid, but this engine does not advertise the capability."""

    reason = pb.ERROR_REASON_UNSUPPORTED


class ModelNotFound(EngineError):
    """No model or adapter of that name is served here."""

    reason = pb.ERROR_REASON_MODEL_NOT_FOUND


class DuplicateRequest(EngineError):
    """A live request already has this id."""

    reason = pb.ERROR_REASON_DUPLICATE_ID


class QueueFull(EngineError):
    """The admission queue is at its limit."""

    reason = pb.ERROR_REASON_QUEUE_FULL
    retryable = True


class KvExhausted(EngineError):
    """The request alone needs more KV blocks than the engine has."""

    reason = pb.ERROR_REASON_KV_EXHAUSTED


class RoleMismatch(EngineError):
    """The request belongs to another disaggregation role."""

    reason = pb.ERROR_REASON_ROLE_MISMATCH


class HandoffInvalid(EngineError):
    """A prefill hand-off is unknown, expired, consumed or not meant for this engine and request."""

    reason = pb.ERROR_REASON_HANDOFF_INVALID


class RevisionMismatch(EngineError):
    """The client's contract revision is outside the supported range."""

    reason = pb.ERROR_REASON_REVISION_MISMATCH


class Draining(EngineError):
    """The server is draining; another endpoint may take the request."""

    reason = pb.ERROR_REASON_DRAINING
    retryable = True


class NotStarted(EngineError):
    """The engine is still starting."""

    reason = pb.ERROR_REASON_NOT_STARTED
    retryable = True


class EngineDead(EngineError):
    """The engine died or was cleaned up; this process will not serve again."""

    reason = pb.ERROR_REASON_ENGINE_DEAD
    retryable = True


class Stuck(EngineError):
    """The engine's step loop makes no progress."""

    reason = pb.ERROR_REASON_STUCK
    retryable = True


class DeadlineExceeded(EngineError):
    """The request's deadline passed before it finished."""

    reason = pb.ERROR_REASON_DEADLINE_EXCEEDED


class NotKnown(EngineError):
    """The caller does not say who it is, or not truly."""

    reason = pb.ERROR_REASON_AUTH


class NotAllowed(EngineError):
    """Who the caller is does not allow the call."""

    reason = pb.ERROR_REASON_AUTH


class Cancelled(EngineError):
    """An abort came before the request did."""

    reason = pb.ERROR_REASON_CANCELLED


class SlowConsumer(EngineError):
    """The reader lagged behind by more than the stream buffer for too long."""

    reason = pb.ERROR_REASON_SLOW_CONSUMER


class AdapterExists(EngineError):
    """Another adapter, or the model itself, has that name."""

    reason = pb.ERROR_REASON_ADAPTER_EXISTS


class AdapterLimit(EngineError):
    """As many adapters are loaded as there may be."""

    reason = pb.ERROR_REASON_ADAPTER_LIMIT


class AdapterInUse(EngineError):
    """Requests are using the adapter."""

    reason = pb.ERROR_REASON_ADAPTER_IN_USE


class StepFailed(EngineError):
    """The engine failed while computing this request. Its way to the caller gives it an opaque id."""

    reason = pb.ERROR_REASON_INTERNAL


class EngineMistake(StepFailed):
    """The engine broke a rule of its interface. Its message is for the engine's author: in the log only."""

    def __str__(self) -> str:
        """What a caller is told."""
        return "the engine made a mistake"


def internal(message: str, error: BaseException) -> StepFailed:
    """The failure that an unexpected error becomes, with an id. The error's own text is for the log only."""
    failure = StepFailed(message)
    failure.__cause__ = error
    give_id(failure)
    return failure


def give_id(failure: EngineError) -> None:
    """Give a failure an opaque id, once, under which the log has what the caller need not know."""
    if ERROR_ID not in failure.metadata:
        failure.metadata[ERROR_ID] = error_id = secrets.token_hex(6)
        [what] = failure.args
        log.error("internal error %s: %s", error_id, what or "unexpected", exc_info=failure.__cause__)
