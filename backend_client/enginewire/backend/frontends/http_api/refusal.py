"""Failures as HTTP: one table from the contract's reasons to status codes, and the error object.

Sans-IO. The object is the one the OpenAI SDK takes apart: message, type, param, code. Below the
routes of Anthropic's API it is theirs, whether the route was found or not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

import orjson

from enginewire import v1 as pb
from enginewire.backend.engines.failure import Failure
from enginewire.backend.prompting.prompts import InvalidPrompt

MAX_MESSAGE_CHARACTERS: Final = 512
# Without a word from the engine: soon, but not at once.
DEFAULT_RETRY_AFTER_SECONDS: Final = 1.0
# nginx's code for a caller who has left; nobody else reads it.
CLIENT_CLOSED_REQUEST: Final = 499

STATUS_OF_REASON: Final[Mapping[pb.ErrorReason.ValueType, int]] = {
    pb.ERROR_REASON_INVALID_REQUEST: HTTPStatus.BAD_REQUEST,
    pb.ERROR_REASON_CONTEXT_EXCEEDED: HTTPStatus.BAD_REQUEST,
    pb.ERROR_REASON_UNSUPPORTED: HTTPStatus.BAD_REQUEST,
    pb.ERROR_REASON_KV_EXHAUSTED: HTTPStatus.BAD_REQUEST,
    pb.ERROR_REASON_MODEL_NOT_FOUND: HTTPStatus.NOT_FOUND,
    pb.ERROR_REASON_DUPLICATE_ID: HTTPStatus.CONFLICT,
    pb.ERROR_REASON_TOO_LARGE: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    pb.ERROR_REASON_QUEUE_FULL: HTTPStatus.TOO_MANY_REQUESTS,
    pb.ERROR_REASON_SLOW_CONSUMER: HTTPStatus.REQUEST_TIMEOUT,
    pb.ERROR_REASON_CANCELLED: CLIENT_CLOSED_REQUEST,
    pb.ERROR_REASON_DRAINING: HTTPStatus.SERVICE_UNAVAILABLE,
    pb.ERROR_REASON_NOT_STARTED: HTTPStatus.SERVICE_UNAVAILABLE,
    pb.ERROR_REASON_ENGINE_DEAD: HTTPStatus.SERVICE_UNAVAILABLE,
    pb.ERROR_REASON_STUCK: HTTPStatus.SERVICE_UNAVAILABLE,
    pb.ERROR_REASON_STREAM_INCOMPLETE: HTTPStatus.BAD_GATEWAY,
    pb.ERROR_REASON_PROTOCOL_VIOLATION: HTTPStatus.BAD_GATEWAY,
    pb.ERROR_REASON_DEADLINE_EXCEEDED: HTTPStatus.GATEWAY_TIMEOUT,
    # Adapters are an operator's business: no request of a caller ends so.
    pb.ERROR_REASON_ADAPTER_EXISTS: HTTPStatus.CONFLICT,
    pb.ERROR_REASON_ADAPTER_LIMIT: HTTPStatus.CONFLICT,
    pb.ERROR_REASON_ADAPTER_IN_USE: HTTPStatus.CONFLICT,
    # How this backend and its engine are set up is nothing a caller can mend.
    pb.ERROR_REASON_ROLE_MISMATCH: HTTPStatus.INTERNAL_SERVER_ERROR,
    pb.ERROR_REASON_REVISION_MISMATCH: HTTPStatus.INTERNAL_SERVER_ERROR,
    pb.ERROR_REASON_HANDOFF_INVALID: HTTPStatus.INTERNAL_SERVER_ERROR,
    pb.ERROR_REASON_AUTH: HTTPStatus.INTERNAL_SERVER_ERROR,
    pb.ERROR_REASON_DECODE_ERROR: HTTPStatus.INTERNAL_SERVER_ERROR,
    pb.ERROR_REASON_INTERNAL: HTTPStatus.INTERNAL_SERVER_ERROR,
}
# Codes that clients of OpenAI look for; all others are the contract's names in lower case.
OPENAI_CODES: Final[Mapping[pb.ErrorReason.ValueType, str]] = {
    pb.ERROR_REASON_CONTEXT_EXCEEDED: "context_length_exceeded",
    pb.ERROR_REASON_QUEUE_FULL: "rate_limit_exceeded",
}
MESSAGES: Final = "/v1/messages"
# All that clients of Anthropic tell apart; what is left is a matter of the server or of the request.
ERROR_TYPES: Final[Mapping[int, str]] = {
    HTTPStatus.UNAUTHORIZED: "authentication_error",
    HTTPStatus.FORBIDDEN: "permission_error",
    HTTPStatus.NOT_FOUND: "not_found_error",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "request_too_large",
    HTTPStatus.TOO_MANY_REQUESTS: "rate_limit_error",
    HTTPStatus.SERVICE_UNAVAILABLE: "overloaded_error",
    HTTPStatus.GATEWAY_TIMEOUT: "timeout_error",
}


@dataclass(frozen=True, slots=True)
class Refusal:
    """An error answer. `retry_after` in seconds; `param` is the field of the body at fault."""

    status: int
    message: str
    param: str | None = None
    code: str | None = None
    retry_after: float | None = None

    @property
    def type(self) -> str:
        """Whose fault it is, in OpenAI's words."""
        if self.status == HTTPStatus.TOO_MANY_REQUESTS:
            return "rate_limit_error"
        return "server_error" if self.status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error"

    @property
    def error(self) -> Mapping[str, str | None]:
        """The error object."""
        message = self.message[:MAX_MESSAGE_CHARACTERS]
        return {"message": message, "type": self.type, "param": self.param, "code": self.code}

    @property
    def body(self) -> bytes:
        """The error object in its place, as JSON."""
        return error_body(self)

    @property
    def headers(self) -> Mapping[str, str]:
        """Retry-After, when a retry makes sense; how to say who one is, when that was missing or wrong."""
        if self.status == HTTPStatus.UNAUTHORIZED:
            return {"www-authenticate": "Bearer"}
        return {} if self.retry_after is None else {"retry-after": str(math.ceil(self.retry_after))}


class Refused(Exception):
    """Ends an answer, before it began or in its middle."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


def refusal_of(failure: Failure, param_of: Callable[[str], str | None]) -> Refusal:
    """The error answer for a failure; `param_of` finds the body's field for a path of the contract."""
    status = STATUS_OF_REASON.get(failure.reason, HTTPStatus.INTERNAL_SERVER_ERROR)
    reason = pb.ErrorReason.Name(failure.reason).removeprefix("ERROR_REASON_").lower()
    retry_after = DEFAULT_RETRY_AFTER_SECONDS if failure.retry_after is None else failure.retry_after
    param = param_of(failure.field) if failure.field else None
    can_retry = status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)
    return Refusal(
        status,
        in_words_of_the_body(failure.message, failure.field, param),
        param,
        OPENAI_CODES.get(failure.reason, reason),
        retry_after if can_retry else None,
    )


def in_words_of_the_body(message: str, field: str, param: str | None) -> str:
    """The message; one that begins with a path of the contract begins with the body's key for it instead."""
    path, colon, rest = message.partition(": ")
    return f"{param}: {rest}" if param and colon and path == field else message


def invalid(message: str, param: str | None = None) -> Refusal:
    """A body that cannot be used."""
    return Refusal(HTTPStatus.BAD_REQUEST, message, param, "invalid_request")


def invalid_prompt(error: InvalidPrompt, param_of: Callable[[str], str | None]) -> Refusal:
    """A prompt that cannot be used; `param_of` as in refusal_of."""
    param = param_of(error.field)
    return invalid(in_words_of_the_body(str(error), error.field, param), param)


def no_such_model(param: str = "model") -> Refusal:
    """A name that nothing here answers to."""
    message = "no model of that name is served here"
    return Refusal(HTTPStatus.NOT_FOUND, message, param, "model_not_found")


def draining() -> Refusal:
    """This server is about to end."""
    return Refusal(
        HTTPStatus.SERVICE_UNAVAILABLE,
        "the server is shutting down",
        code="draining",
        retry_after=DEFAULT_RETRY_AFTER_SECONDS,
    )


def overloaded(message: str) -> Refusal:
    """Others take what there is to take, for now."""
    return Refusal(
        HTTPStatus.SERVICE_UNAVAILABLE, message, code="overloaded", retry_after=DEFAULT_RETRY_AFTER_SECONDS
    )


def error_body(refusal: Refusal, path: str = "") -> bytes:
    """An error as JSON, for whoever asked for `path`."""
    return orjson.dumps(error_fields(refusal, path))


def error_fields(refusal: Refusal, path: str = "") -> Mapping[str, object]:
    """The same as fields. `path` may be below one of a proxy, and is "" where it is not known."""
    if f"{MESSAGES}/" not in f"{path.partition('?')[0]}/":
        return {"error": refusal.error}
    other = "api_error" if refusal.status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error"
    kind = ERROR_TYPES.get(refusal.status, other)
    return {"type": "error", "error": {"type": kind, "message": refusal.error["message"]}}
