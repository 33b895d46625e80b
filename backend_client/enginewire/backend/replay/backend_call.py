"""What a caller of the backend asks for. Knows nothing about engines."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

RequestT = TypeVar("RequestT")


@dataclass(frozen=True, slots=True)
class BackendCall(Generic[RequestT]):
    """One call of the backend. `deadline` is a time of time.monotonic."""

    request: RequestT
    request_id: str = ""
    deadline: float | None = None
    metadata: Mapping[str, str] | None = None

    @property
    def seconds_left(self) -> float | None:
        """Until the deadline, never negative."""
        return None if self.deadline is None else max(0.0, self.deadline - time.monotonic())
