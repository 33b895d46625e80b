"""What the core has done since it began.

Written by the step thread alone, which others read as part of a snapshot.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """Totals since start."""

    steps: int = 0
    requests_added: int = 0
    requests_finished: int = 0
    tokens_generated: int = 0
