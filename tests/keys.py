"""API keys, as an operator makes them: one of each role, and the lines that a file of keys has for them."""

from __future__ import annotations

from hashlib import sha256

from enginewire.access.roles import Role

KEYS = {role: f"canary-{role.word}-7b1f0c5e9d24" for role in Role}
ALL_KEYS = tuple(f"{role.word}:{key}" for role, key in KEYS.items())
"""For `--api-key`."""
UNKNOWN_KEY = "canary-nobody-7b1f0c5e9d24"


def line_of(key: str, role: Role, fields: str = "") -> str:
    """What a file of keys has."""
    return f"{role.word} sha256:{sha256(key.encode()).hexdigest()} {fields}\n"


def bearing(*keys: str) -> tuple[tuple[str, str], ...]:
    """Metadata of a gRPC call, or headers of HTTP."""
    return tuple(("authorization", f"Bearer {key}") for key in keys)
