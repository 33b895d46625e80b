"""What a caller of the backend asks for. Knows nothing about engines."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from enginewire import v1 as pb


@dataclass(frozen=True, slots=True)
class GenerateCall:
    """One call of `Backend.generate`. `deadline` is a time of time.monotonic."""

    request: pb.PreprocessedRequest
    request_id: str = ""
    deadline: float | None = None
    metadata: Mapping[str, str] | None = None

    @property
    def seconds_left(self) -> float | None:
        """Until the deadline; perhaps negative."""
        return None if self.deadline is None else self.deadline - time.monotonic()
