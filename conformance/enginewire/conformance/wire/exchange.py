"""One RPC as it was seen from here: request, timed messages, status and its details.

Holds no connection; `client` fills it while the call runs, reports print it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import grpc
from google.protobuf.message import DecodeError, Message

from enginewire import v1 as pb
from enginewire.conformance.wire.violation import Violation

DETAILS_KEY: Final = "grpc-status-details-bin"
LIFETIME_KEY: Final = "enginewire-lifetime-id"
"""Initial metadata that a server sends when it accepts a request, and not earlier."""

Metadata = tuple[tuple[str, str | bytes], ...]


@dataclass(frozen=True, slots=True)
class Sent:
    """A message of a stream of requests and when it went, in seconds of the monotonic clock."""

    at: float
    message: Message | bytes


@dataclass(slots=True)
class Arrived:
    """A message and when it came, in seconds of the monotonic clock."""

    at: float
    message: Message
    size: int


@dataclass(slots=True, eq=False, weakref_slot=True)
class Exchange:
    """One RPC. `code` is None while it runs. Times are seconds of the monotonic clock.

    `request` is None where the method takes a stream: `sent` has what went into it so far.
    """

    method: str
    request: Message | bytes | None
    metadata: Metadata = ()
    timeout: float | None = None
    started_at: float = 0.0
    accepted_at: float | None = None
    ended_at: float | None = None
    sent: list[Sent] = field(default_factory=list)
    arrived: list[Arrived] = field(default_factory=list)
    initial_metadata: Metadata = ()
    trailing_metadata: Metadata = ()
    code: grpc.StatusCode | None = None
    text: str = ""
    target: str = ""
    is_compressed: bool = False
    _messages: list[Message] = field(default_factory=list, repr=False)

    @property
    def messages(self) -> list[Message]:
        """The messages, in order. The list is the same each time and grows: it is for reading."""
        # Asked for at every message of a long answer, so it is not made anew.
        if len(self._messages) < len(self.arrived):
            self._messages += [arrived.message for arrived in self.arrived[len(self._messages) :]]
        return self._messages

    @property
    def is_ok(self) -> bool:
        """True when the call ended with OK."""
        return self.code is grpc.StatusCode.OK

    @property
    def timed_out(self) -> bool:
        """True when our own deadline ended the call: no answer came in time."""
        late = self.ended_at is not None and self.timeout is not None
        elapsed = (self.ended_at or 0.0) - self.started_at
        return self.code is grpc.StatusCode.DEADLINE_EXCEEDED and late and elapsed >= (self.timeout or 0.0)

    @property
    def status(self) -> str:
        """The status in one line."""
        if self.code is None:
            return "still open"
        if self.timed_out:
            return f"no end within {self.timeout:.1f} s"
        return f"{self.code.name}: {self.text}" if self.text else self.code.name

    @property
    def status_details(self) -> pb.Status | None:
        """The content of the trailer `grpc-status-details-bin`; None without one that parses."""
        for key, value in self.trailing_metadata:
            if key == DETAILS_KEY and isinstance(value, bytes):
                try:
                    return pb.Status.FromString(value)
                except DecodeError:
                    return None
        return None

    @property
    def detail(self) -> pb.ErrorDetail | None:
        """The ErrorDetail of the status; None without one."""
        status = self.status_details
        return detail_of(status) if status else None

    def response(self) -> Message:
        """The only message of a unary call that ended with OK; anything else is a Violation."""
        if not self.is_ok:
            raise Violation(f"{self.method} failed", expected="OK", seen=self.status)
        if len(self.arrived) != 1:
            raise Violation(f"{self.method} is unary", expected="one message", seen=len(self.arrived))
        return self.arrived[0].message


def detail_of(status: pb.Status) -> pb.ErrorDetail | None:
    """What a status says to programs; None when it says nothing."""
    for packed in status.details:
        detail = pb.ErrorDetail()
        if packed.Unpack(detail):
            return detail
    return None
