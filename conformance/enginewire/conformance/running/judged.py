"""What checks of servers and checks of backends have in common: a requirement, a function, a name.

Knows nothing about what a check looks at.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Judged:
    """A check of either side. Its function raises Violation or NotApplicable, or returns."""

    id: str
    function: Callable[..., Awaitable[None]]
    variant: str = ""

    @property
    def key(self) -> str:
        """Unique and stable: the id, with the variant where an id has several checks."""
        return f"{self.id}/{self.variant}" if self.variant else self.id

    @property
    def name(self) -> str:
        """Where its code is."""
        module = self.function.__module__.removeprefix("enginewire.conformance.")
        return f"{module}:{getattr(self.function, '__name__', '?')}"
