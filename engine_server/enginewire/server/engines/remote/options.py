"""What every engine in another process is told by the server's options, however it is reached."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

USUAL_SLOTS: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteOptions:
    """`target` is a gRPC name, such as unix:/run/raw.sock, or a URL; times are in seconds.

    `start_timeout` is for the engine to answer at all, `silence_timeout` for a running request to get its
    next token. `max_num_seqs` is for an engine that does not say how many sequences it runs.
    """

    target: str
    start_timeout: float = 600.0
    silence_timeout: float = 120.0
    max_num_seqs: int = USUAL_SLOTS
