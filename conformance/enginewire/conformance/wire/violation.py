"""How a check says that the target broke the contract, or that there is nothing to judge.

Knows nothing about gRPC and about who catches what: the runner adds the RPCs of the check as evidence.
"""

from __future__ import annotations

from typing import Final

LONGEST: Final = 2000
"""Characters of a line: what a target sent may be long."""


class Violation(Exception):
    """The target broke the requirement. `expected` and `seen` are one line each, for a human."""

    def __init__(self, message: str, *, expected: object = "", seen: object = "") -> None:
        super().__init__(_line(message))
        self.expected = _line(expected)
        self.seen = _line(seen)


class NotApplicable(Exception):
    """The requirement says nothing about this target; the text says why. Never used instead of a FAIL."""


def expect(condition: object, message: str, *, expected: object = "", seen: object = "") -> None:
    """Raise a Violation unless the condition holds."""
    if not condition:
        raise Violation(message, expected=expected, seen=seen)


def expect_equal(seen: object, expected: object, message: str) -> None:
    """Raise a Violation unless both are equal."""
    expect(seen == expected, message, expected=expected, seen=seen)


def _line(value: object) -> str:
    text = str(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} …"
