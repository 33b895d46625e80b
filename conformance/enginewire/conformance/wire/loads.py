"""What a load says of requests that have not ended. Asks nobody."""

from __future__ import annotations

from typing import Final

from enginewire import v1 as pb

OF_REQUESTS: Final = ("running", "waiting", "waiting_tokens", "kv_blocks_used")
"""The numbers that have to return to 0."""


def is_idle(load: pb.Load) -> bool:
    """Nothing runs, waits or is held."""
    return not any(getattr(load, name) for name in OF_REQUESTS)


def describe_load(load: pb.Load) -> str:
    """These numbers in one line."""
    return ", ".join(f"{name} {getattr(load, name)}" for name in OF_REQUESTS)
