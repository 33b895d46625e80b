"""The body of one answer, written from wherever its next piece is made: no task, no message of ASGI.

Status, headers and the end of the answer take their way through ASGI. Knows nothing about what is written.
"""

from __future__ import annotations

from typing import Final

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

# An extension of ASGI has a name, and is a dictionary.
EXTENSION: Final = "enginewire.direct_body"
BODY: Final = "body"


class DirectBody:
    """Use between the beginning of an answer and its end."""

    __slots__ = ("_cycle",)

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle

    @property
    def can_take(self) -> bool:
        """False while the caller reads so slowly that the next piece has to wait."""
        return not self._cycle.flow.write_paused

    def write(self, data: bytes) -> None:
        """The next piece, if it is one and if the caller is still there."""
        cycle = self._cycle
        # A chunk of nothing would be the end.
        if data and not cycle.disconnected:
            cycle.transport.write(b"%x\r\n%b\r\n" % (len(data), data) if cycle.chunked_encoding else data)


def offer_direct_body(cycle: RequestResponseCycle) -> None:
    """Let whoever answers write the body itself."""
    cycle.scope["extensions"] = {EXTENSION: {BODY: DirectBody(cycle)}}


def direct_body(scope: Scope) -> DirectBody | None:
    """Take what the connection of a request has offered; None on a server that is not ours."""
    # Left in the scope, which it holds, it would wait for the garbage collector.
    body = scope.get("extensions", {}).pop(EXTENSION, {}).get(BODY)
    return body if isinstance(body, DirectBody) else None
