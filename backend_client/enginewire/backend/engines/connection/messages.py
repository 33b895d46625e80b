"""The messages of a Generate call, and what each of them is in its stream."""

from __future__ import annotations

import time
from typing import Final

import grpc

from enginewire import v1 as pb
from enginewire.backend.engines.stream import EngineStream

LIFETIME_KEY: Final = "enginewire-lifetime-id"
PLAIN_FIELDS: Final = frozenset({"token_ids", "first_output_position", "index"})


def take_headers(error: grpc.aio.AioRpcError, stream: EngineStream) -> None:
    """Of a call that failed: they came with the acceptance, and a refusal has none."""
    for key, value in error.initial_metadata() or ():
        if key == LIFETIME_KEY and isinstance(value, str) and stream.accepted is None:
            stream.accepted = pb.Accepted(engine_lifetime_id=value, request_id=stream.request_id)


def take_message(response: pb.GenerateResponse, stream: EngineStream) -> None:
    """Put it into the stream, and wake whoever reads that."""
    if response.engine_lifetime_id:
        stream.accepted = pb.Accepted(
            engine_lifetime_id=response.engine_lifetime_id, request_id=response.request_id
        )
    if response.HasField("engine_event"):
        stream.event(response.engine_event)
        stream.wake()
        return
    output = response.output
    # The same split as in a frame: an output that is only tokens travels as tokens.
    if all(field.name in PLAIN_FIELDS for field, _ in output.ListFields()):
        has_news = stream.tokens(
            output.index, output.first_output_position, list(output.token_ids), time.monotonic()
        )
    else:
        stream.output(output)
        has_news = True
    if has_news:
        stream.wake()
