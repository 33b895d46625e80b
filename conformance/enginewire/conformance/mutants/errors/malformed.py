"""Servers that stumble over bytes that no client of this contract sends."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from enginewire import v1 as pb
from enginewire.conformance.mutants import mutant
from enginewire.conformance.reference.refusal import Refusal, invalid
from enginewire.conformance.reference.server import Reference

NOT_UTF8 = b"\xff\xfe\xc3("


@mutant("unknown_field_rejected", kills="ERR-08")
class UnknownFieldRejected(Reference):
    def validate(self, request: pb.GenerateRequest) -> None:
        if not request.client_revision and len(UnknownFieldSet(request.request.sampling_options)):
            raise invalid("sampling_options", "has an unknown field", 1, "known fields")
        super().validate(request)


@mutant("unknown_field_rejected_by_load", kills="ERR-08")
class UnknownFieldRejectedByLoad(Reference):
    def parsed(self, request_class: type[Message], payload: bytes) -> Any:
        request = super().parsed(request_class, payload)
        if isinstance(request, pb.GetLoadRequest) and payload:
            raise invalid("", "has an unknown field", len(payload), "nothing")
        return request


@mutant("garbage_wrong_code", kills="ERR-09")
class GarbageWrongCode(Reference):
    def parsed(self, request_class: type[Message], payload: bytes) -> Any:
        try:
            return request_class.FromString(payload)
        except DecodeError as error:
            if NOT_UTF8 in payload:
                raise invalid("", "the bytes do not parse", len(payload), "a message") from None
            raise Refusal(
                pb.ERROR_REASON_ENGINE_DEAD, "the engine is gone", code=grpc.StatusCode.UNAVAILABLE
            ) from error


@mutant("garbage_served", kills="ERR-09")
class GarbageServed(Reference):
    def parsed(self, request_class: type[Message], payload: bytes) -> Any:
        try:
            return super().parsed(request_class, payload)
        except Refusal:
            if request_class is pb.GetLoadRequest:
                return request_class()
            raise


@mutant("garbage_kills_server", kills="ERR-09")
class GarbageKillsServer(Reference):
    """Fails the next request that comes alone after garbage; it would be every one if it could die."""

    is_broken = False

    def parsed(self, request_class: type[Message], payload: bytes) -> Any:
        if payload.endswith(b"short"):
            self.is_broken = True
        request = super().parsed(request_class, payload)
        if self.is_broken and isinstance(request, pb.GenerateRequest) and "ERR-09" in request.request_id:
            raise Refusal(pb.ERROR_REASON_INTERNAL, "fault 77aa")
        return request


class Counting(Reference):
    """A place to be wrong about calls of GetLoad without a message or with several."""

    def handlers(self) -> list[grpc.GenericRpcHandler]:
        return [_GetLoad(self.answer), *super().handlers()]

    async def answer(self, payloads: list[bytes]) -> bytes:
        if len(payloads) != 1:
            return await self.miscounted(payloads)
        self.parsed(pb.GetLoadRequest, payloads[0])
        return (await self.get_load()).SerializeToString()

    async def miscounted(self, payloads: list[bytes]) -> bytes:
        raise NotImplementedError


@mutant("no_message_served", kills="ERR-20")
class NoMessageServed(Counting):
    async def miscounted(self, payloads: list[bytes]) -> bytes:
        return await self.answer(payloads[:1] or [b""])


@mutant("two_messages_lose_data", kills="ERR-20", also="ERR-12/seen")
class TwoMessagesLoseData(Counting):
    async def miscounted(self, payloads: list[bytes]) -> bytes:
        code = grpc.StatusCode.DATA_LOSS if payloads else grpc.StatusCode.INTERNAL
        raise Refusal(pb.ERROR_REASON_INTERNAL, "fault 1d07", code=code)


@mutant("utf8_crash", kills="ERR-10", also="ERR-12/seen")
class Utf8Crash(Reference):
    def parsed(self, request_class: type[Message], payload: bytes) -> Any:
        if NOT_UTF8 in payload:
            raise Refusal(pb.ERROR_REASON_INTERNAL, "data loss", code=grpc.StatusCode.DATA_LOSS)
        return super().parsed(request_class, payload)


@mutant("unknown_method_ok", kills="ERR-15")
class UnknownMethodOk(Reference):
    def handlers(self) -> list[grpc.GenericRpcHandler]:
        return [*super().handlers(), _Anything()]


class _Anything(grpc.GenericRpcHandler):
    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        is_unknown = "NoSuch" in handler_call_details.method
        return grpc.unary_unary_rpc_method_handler(_nothing) if is_unknown else None


class _GetLoad(grpc.GenericRpcHandler):
    def __init__(self, answer: Callable[[list[bytes]], Awaitable[bytes]]) -> None:
        self._answer = answer

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        is_asked = handler_call_details.method.endswith("/GetLoad")
        return grpc.stream_unary_rpc_method_handler(self._serve) if is_asked else None

    async def _serve(
        self, payloads: AsyncIterator[bytes], context: grpc.aio.ServicerContext[Any, Any]
    ) -> bytes:
        try:
            return await self._answer([payload async for payload in payloads])
        except Refusal as refusal:
            await context.abort(refusal.code, refusal.message, refusal.trailers())
            raise AssertionError("abort raises") from None


async def _nothing(payload: bytes, context: object) -> bytes:
    return b""
