"""Requests and annotated outputs as JSON, in the names of the contract.

Sans-IO. Shared by the faces that speak JSON; knows nothing about files or lines.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NoReturn

from google.protobuf import json_format

from enginewire import v1 as pb
from enginewire.backend.decoding.annotated import Annotated, BackendOutput, Failure

RequestId = str | int | None
# google.rpc.Code
INVALID_ARGUMENT: Final = 3
PROMPT_KEYS: Final = ("prompt", "messages", "token_ids")


class InvalidJson(ValueError):
    """Not a request; `field` is the key at fault, "" when it is no JSON object at all."""

    def __init__(self, field: str, message: str, request_id: RequestId = None) -> None:
        super().__init__(f"{field}: {message}" if field else message)
        self.field = field
        self.request_id = request_id


@dataclass(frozen=True, slots=True)
class JsonRequest:
    """A request and the id its caller knows it by."""

    asked: pb.BackendServiceGenerateRequest
    id: RequestId


def request_from_json(text: str | bytes) -> JsonRequest:
    """Read `{"prompt" | "messages" | "token_ids": …, "id": …, "stop_conditions": {…}, …}`.

    Every other key is a field of PreprocessedRequest in its protobuf JSON form. Raises InvalidJson.
    """
    fields = _object(text)
    request_id = _id(fields.pop("id", None))
    try:
        return JsonRequest(_asked(fields), request_id)
    except InvalidJson as error:
        error.request_id = request_id
        raise


def item_to_json(item: Annotated[BackendOutput]) -> dict[str, object]:
    """`data`, `event`, `event_id`, `comment` and `error`, as far as the item has them."""
    entries: dict[str, object] = {}
    if item.data is not None:
        entries["data"] = output_to_json(item.data)
    if item.event is not None:
        entries["event"] = item.event
    # Not "id", by which the caller knows the request.
    if item.id is not None:
        entries["event_id"] = item.id
    if item.comment:
        entries["comment"] = list(item.comment)
    if item.error is not None:
        entries["error"] = failure_to_json(item.error)
    return entries


def output_to_json(output: BackendOutput) -> dict[str, object]:
    """BackendOutput in its protobuf JSON form, `index` and `text` always present."""
    fields: dict[str, object] = json_format.MessageToDict(output.to_proto(), preserving_proto_field_name=True)
    return {"index": output.index, "text": output.text, **fields}


def failure_to_json(failure: Failure) -> dict[str, object]:
    """The object under `error`; `reason` is the contract's name of it, `field` what is at fault or ""."""
    return {
        "code": failure.code,
        "reason": pb.ErrorReason.Name(failure.reason),
        "message": failure.message,
        "field": failure.field,
        "retryable": failure.retryable,
    }


def invalid_to_json(message: str, field: str) -> dict[str, object]:
    """The object under `error` for a request that was refused here."""
    reason = pb.ERROR_REASON_INVALID_REQUEST
    return failure_to_json(Failure(INVALID_ARGUMENT, reason, message, field=field))


def _object(text: str | bytes) -> dict[str, object]:
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise InvalidJson("", "not UTF-8") from error
    except json.JSONDecodeError as error:
        raise InvalidJson("", f"not JSON: {error.msg} at column {error.colno}") from error
    except RecursionError as error:
        raise InvalidJson("", "nested too deeply") from error
    except InvalidJson:
        raise
    except ValueError as error:
        raise InvalidJson("", "has a number of too many digits") from error
    if not isinstance(value, dict):
        raise InvalidJson("", "not a JSON object")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise InvalidJson("", f"not JSON: {name}")


def _id(value: object) -> RequestId:
    if value is None or (isinstance(value, str | int) and not isinstance(value, bool)):
        return value
    raise InvalidJson("id", "must be a string or a whole number")


def _asked(fields: dict[str, object]) -> pb.BackendServiceGenerateRequest:
    given = [key for key in PROMPT_KEYS if key in fields]
    if len(given) != 1:
        raise InvalidJson("prompt", "exactly one of prompt, messages and token_ids is needed")
    asked = pb.BackendServiceGenerateRequest()
    kind = given[0]
    if kind == "prompt":
        asked.text = _prompt(fields.pop("prompt"))
    elif kind == "messages":
        _parse({"messages": fields.pop("messages")}, asked.chat, "messages")
    else:
        asked.token_ids = True
    _parse(fields, asked.request, "request")
    return asked


def _prompt(value: object) -> str:
    if not isinstance(value, str):
        raise InvalidJson("prompt", "must be a string")
    # JSON can spell lone surrogates, UTF-8 cannot.
    if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
        raise InvalidJson("prompt", "has a lone surrogate")
    return value


def _parse(fields: Mapping[str, object], message: pb.ChatPrompt | pb.PreprocessedRequest, field: str) -> None:
    try:
        json_format.ParseDict(dict(fields), message)
    except (json_format.ParseError, RecursionError) as error:
        raise InvalidJson(field, " ".join(str(error).split())) from error
