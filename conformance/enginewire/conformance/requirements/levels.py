"""Which core requirements come first for whoever writes a server, and which later.

A capability has no level: what is asked of it is asked from the moment it is advertised. docs/contract.md has
the same table in words. Knows nothing about running anything.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from enginewire.conformance.requirements.requirement import Requirement


class Level(IntEnum):
    """How far a server is. Each level has those below it."""

    STREAMS = 1
    """Says what it is, and answers, refuses and aborts requests as the contract says."""
    OPERABLE = 2
    """Can be put behind a load balancer: cancelled, watched, loaded, drained, ended."""
    COMPLETE = 3
    """All of core."""


NO_LEVEL: Final = 0

LAUNCH: Final = "launch"
"""Not a capability but how the kit reaches a server: what it opens is part of core."""

OF_LEVEL: Final = frozenset({"core", LAUNCH})
"""The gates whose requirements have a level."""

OUTSIDE: Final = frozenset(
    {
        *OF_LEVEL,
        *("backend", "keepalive", "keys", "tls", "client_certificates", "tracing", "reflection"),
    }
)
"""The gates that are no capability of a server."""

AREAS: Final = {
    **dict.fromkeys(("INF", "STR", "USE", "LIM", "STP", "SAM", "ABO"), Level.STREAMS),
    **dict.fromkeys(("HLT", "PRB", "CAN", "CON", "DRN", "LIF", "BPR", "MDT"), Level.OPERABLE),
}
"""All other areas are of the last level."""

EXCEPTIONS: Final = {
    **dict.fromkeys(
        (
            *("ERR-01", "ERR-02", "ERR-04", "ERR-05", "ERR-06"),
            *("ERR-11", "ERR-12", "ERR-13", "ERR-17"),
            "ERR-27",
        ),
        Level.STREAMS,
    ),
    **dict.fromkeys(("INF-08", "INF-12", "INF-13", "ABO-05", "ABO-06", "ABO-08", "ERR-16"), Level.OPERABLE),
    **dict.fromkeys(("LIM-11", "ABO-11", "DRN-11", "DRN-12", "LIF-05", "LIF-06", "LIF-08"), Level.COMPLETE),
}
"""Errors that everybody meets come first; what needs a full server, or is a courtesy, comes later."""


def level_of(requirement: Requirement) -> int:
    """The level that asks for it; NO_LEVEL for what belongs to a capability or to a backend."""
    if requirement.gate not in OF_LEVEL:
        return NO_LEVEL
    return EXCEPTIONS.get(requirement.id) or AREAS.get(requirement.id[:3], Level.COMPLETE)
