"""Who makes the call that is being served, for whatever is done in its name.

Knows nothing about keys, certificates and gRPC.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final


@dataclass(frozen=True, slots=True)
class Caller:
    """`identity` is the same for each call of one key, or of one certificate; "" where nobody asks."""

    identity: str = field(default="", repr=False)
    is_admin: bool = True

    def may_end(self, owner: str) -> bool:
        """True for requests of its own, and for an admin."""
        return self.is_admin or self.identity == owner


ANYBODY: Final = Caller()
"""Where there are neither keys nor certificates, who reaches a server may do everything."""

_current: ContextVar[Caller] = ContextVar("caller", default=ANYBODY)


def caller() -> Caller:
    """Who makes the call that this task serves."""
    return _current.get()


def serve_for(whom: Caller) -> None:
    """What this task and those that it begins do from now on is in the name of `whom`."""
    _current.set(whom)
