"""The reserved metadata keys, folded into the request they belong to where their capability is offered."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Final

from enginewire import v1 as pb
from enginewire.conformance.reference.refusal import invalid

NUMBERS: Final = {
    "enginewire-dp-rank": ("dp_rank", "data_parallel"),
    "enginewire-priority": ("priority", "priority"),
}

DECIMAL: Final = re.compile("-?[0-9]{1,10}")


def decimal(text: str) -> int:
    """The number. Raises ValueError for what is not written with digits alone, behind a minus at most."""
    if not DECIMAL.fullmatch(text):
        raise ValueError(text)
    return int(text)


def fold(
    request: pb.GenerateRequest,
    metadata: Iterable[tuple[str, str | bytes]],
    allows: Callable[[str], bool],
    read: Callable[[str], int],
) -> None:
    """Set routing hints from metadata; Refusal when a key cannot be read or disagrees with its field."""
    routing = request.request.routing
    for key, text in metadata:
        field, capability = NUMBERS.get(key, ("", ""))
        if not (capability and allows(capability)):
            continue
        told = pb.RoutingHints()
        try:
            setattr(told, field, read(str(text)))
        except ValueError:
            raise invalid(key, "is not a number", text, "a number") from None
        if routing.HasField(field) and getattr(routing, field) != getattr(told, field):  # type: ignore[arg-type]  # of NUMBERS
            raise invalid(key, f"disagrees with routing.{field}", text, "the same number")
        routing.MergeFrom(told)
