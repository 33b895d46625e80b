"""The reserved metadata keys, folded into the request they belong to."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from enginewire import v1 as pb
from enginewire.conformance.reference.refusal import invalid

NUMBERS: Final = {"enginewire-dp-rank": "dp_rank", "enginewire-priority": "priority"}


def fold(request: pb.GenerateRequest, metadata: Iterable[tuple[str, str | bytes]]) -> None:
    """Set routing hints from metadata; Refusal when a key cannot be read or disagrees with its field."""
    routing = request.request.routing
    for key, text in metadata:
        if key not in NUMBERS:
            continue
        field = NUMBERS[key]
        told = pb.RoutingHints()
        try:
            setattr(told, field, int(text))
        except ValueError:
            raise invalid(key, "is not a number", text, "a number") from None
        if routing.HasField(field) and getattr(routing, field) != getattr(told, field):  # type: ignore[arg-type]  # of NUMBERS
            raise invalid(key, f"disagrees with routing.{field}", text, "the same number")
        routing.MergeFrom(told)
