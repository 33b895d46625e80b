"""Who makes the call that is being served, for whatever is done in its name.

Knows nothing about keys, certificates and gRPC.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final

from enginewire.access.allowance import UNBOUNDED, Allowance

OTHER: Final = "other"
"""What metrics call everybody whose name is in no configuration."""


@dataclass(frozen=True, slots=True)
class Party:
    """Who shares a server with others.

    `key` is the same for all its requests, "" where nobody is told apart. `label` comes from configuration,
    so that there are few of them. `tenant` is what a backend calls it towards an engine, and tells nothing of
    a key.
    """

    key: str = field(default="", repr=False)
    label: str = OTHER
    allowance: Allowance = UNBOUNDED
    tenant: str = ""


NOBODY: Final = Party()


@dataclass(frozen=True, slots=True)
class Caller:
    """`identity` is the same for each call of one key, or of one certificate; "" where nobody asks.

    `party` is whose requests share weight and limits. One that `names_tenants` is a backend: each of its
    requests may be in the name of somebody else.
    """

    identity: str = field(default="", repr=False)
    is_admin: bool = True
    party: Party = NOBODY
    names_tenants: bool = False

    def may_end(self, owner: str) -> bool:
        """True for requests of its own, and for an admin."""
        return self.is_admin or self.identity == owner


ANYBODY: Final = Caller(names_tenants=True)
"""Where there are neither keys nor certificates, who reaches a server may do everything."""

_current: ContextVar[Caller] = ContextVar("caller", default=ANYBODY)


def caller() -> Caller:
    """Who makes the call that this task serves."""
    return _current.get()


def serve_for(whom: Caller) -> None:
    """What this task and those that it begins do from now on is in the name of `whom`."""
    _current.set(whom)
