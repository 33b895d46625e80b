"""What part an engine has in disaggregated serving, and where it hands keys and values over.

Plain values; touches no file.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Role = Literal["aggregated", "prefill", "decode"]


@dataclass(frozen=True, slots=True)
class TransferOptions:
    """`folder` is shared by both engines, `ttl` in seconds, `max_bytes` for all that is under way."""

    folder: Path
    ttl: float = 60.0
    max_bytes: int = 2**30

    def __post_init__(self) -> None:
        if self.ttl <= 0:
            raise ValueError(f"ttl must be above 0, not {self.ttl:g}")
        if self.max_bytes < 1:
            raise ValueError(f"max_bytes must be at least 1, not {self.max_bytes}")
