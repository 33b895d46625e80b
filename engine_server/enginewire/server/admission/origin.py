"""Where a request comes from: in whose name, and in which trace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from enginewire.access.caller import NOBODY, Party


@dataclass(frozen=True, slots=True)
class Origin:
    """It shares the engine in the name of `party`; `trace` are the headers that name its trace."""

    party: Party = NOBODY
    trace: Mapping[str, str] = field(default_factory=dict)


NOWHERE: Final = Origin()
