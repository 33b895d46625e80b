"""Named sets of requirements for servers that are not meant to keep all of core.

`bare` is what an engine keeps that has a server of ours in front of it: docs/contract.md has the same list.
Every other name is that of a group of the contract, such as core or logprobs. Runs nothing.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from enginewire.conformance.requirements.requirement import Requirement

BARE: Final = "bare"

OF_BARE: Final = frozenset(
    {
        *("INF-01", "INF-02", "INF-03", "INF-05"),
        *("STR-01", "STR-02", "STR-03", "STR-04", "STR-05", "STR-06", "STR-07", "STR-08", "STR-09"),
        *("STR-10", "STR-11"),
        *("LIM-01", "LIM-02", "LIM-03", "LIM-06"),
        *("STP-01", "STP-02", "STP-03", "STP-04", "STP-05", "STP-07", "STP-08"),
        *("SAM-01", "SAM-06", "SAM-07", "SAM-11", "SAM-16"),
        *("ABO-01", "ABO-02", "CAN-01", "CON-01", "CON-02"),
    }
)
"""What holds for every bare engine."""

OF_BARE_WITH: Final = frozenset(
    {
        *("SAM-02", "SAM-03", "SAM-04", "SAM-08", "SAM-09", "SAM-12", "SAM-13", "SAM-14", "SAM-17", "SAM-18"),
        *("LOG-01", "LOG-02", "LOG-03", "LOG-04", "LOG-05", "LOG-06", "LOG-07", "LOG-08", "LOG-10", "LOG-11"),
        *("SEQ-01", "SEQ-02", "SEQ-04", "SEQ-05", "STP-06", "STP-09", "EVT-01", "EVT-03"),
        *("RES-01", "RES-02", "RES-03", "RES-04", "RES-05", "RES-06", "RES-07", "RES-08"),
    }
)
"""What holds where the capability is advertised: all but refusals, which the server in front gives."""


def is_of(requirement: Requirement, name: str) -> bool:
    """True when the requirement belongs to what is called so."""
    if name == BARE:
        return requirement.id in OF_BARE | OF_BARE_WITH
    return requirement.profile == name


def is_of_any(requirement: Requirement, names: Collection[str]) -> bool:
    """True when it belongs to one of them, or when there are none to choose from."""
    return not names or any(is_of(requirement, name) for name in names)
