"""What one caller may have of a server: its weight beside others and its limits, as an operator writes them.

Knows nothing about who callers are and what they have already.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

LARGEST: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Allowance:
    """Limits that are None do not bound. Requests are counted by their choices, tokens with their prompts.

    `min_priority` is the most urgent `routing.priority` that the caller's requests may have.
    """

    weight: float = 1.0
    max_parallel_requests: int | None = None
    max_waiting_requests: int | None = None
    max_parallel_tokens: int | None = None
    rpm_limit: int | None = None
    tpm_limit: int | None = None
    min_priority: int | None = None


UNBOUNDED: Final = Allowance()


class InvalidField(Exception):
    """What stands in a line and cannot be used; the message begins with the field's name."""


def _count(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,10}", text) or not 1 <= int(text) <= LARGEST:
        raise ValueError(f"a number from 1 to {LARGEST}")
    return int(text)


def _priority(text: str) -> int:
    if not re.fullmatch(r"-?[0-9]{1,10}", text) or abs(int(text)) > LARGEST:
        raise ValueError(f"a number from {-LARGEST} to {LARGEST}")
    return int(text)


def _weight(text: str) -> float:
    if not re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,3})?", text) or not 0.001 <= float(text) <= 1000:
        raise ValueError("a number from 0.001 to 1000")
    return float(text)


FIELDS: Final[Mapping[str, Callable[[str], float]]] = {
    "weight": _weight,
    "max_parallel_requests": _count,
    "max_waiting_requests": _count,
    "max_parallel_tokens": _count,
    "rpm_limit": _count,
    "tpm_limit": _count,
    "min_priority": _priority,
}


def split_fields(words: Iterable[str], allowed: Iterable[str]) -> dict[str, str]:
    """`name=value` words as a mapping.

    Raises InvalidField for others, for unknown names and for the same twice.
    """
    names = [*allowed]
    found: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or name not in names:
            # It may be a key that somebody has put here: only what looks like a field is repeated.
            shown = name if equals and re.fullmatch(r"[a-z_]{1,32}", name) else "a word"
            raise InvalidField(f"{shown}: no such field, allowed {', '.join(f'{each}=' for each in names)}")
        if name in found:
            raise InvalidField(f"{name}: given twice")
        found[name] = value
    return found


def read_allowance(fields: Mapping[str, str]) -> Allowance:
    """From the fields that are its own; others are left out. Raises InvalidField."""
    return Allowance(**{name: _value(name, fields[name]) for name in FIELDS if name in fields})


def _value(name: str, text: str) -> Any:
    try:
        return FIELDS[name](text)
    except ValueError as error:
        raise InvalidField(f"{name}: must be {error}, got {text[:64]!a}") from None
