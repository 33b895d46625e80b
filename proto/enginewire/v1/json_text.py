"""Opaque JSON inside a request: is it JSON, small, and not too deep for whoever parses it next?

Nothing is kept of what was parsed. Knows nothing about what the JSON means.
"""

from __future__ import annotations

import json
import re
from typing import NoReturn

MAX_BYTES = 65_536
MAX_DEPTH = 64

# Possessive, and an unterminated string matches too: so every character is looked at once.
_STRUCTURE = re.compile(r'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)|[\[\]{}]', re.DOTALL)


def json_fault(data: bytes | str, *, must_be_object: bool) -> str | None:
    """What is wrong with `data`, or None. The answer never quotes it."""
    size = len(data.encode() if isinstance(data, str) else data)
    if size > MAX_BYTES:
        return f"too long, got {size} bytes, allowed 0..{MAX_BYTES}"
    try:
        text = data if isinstance(data, str) else data.decode()
    except UnicodeDecodeError:
        return "must be UTF-8"
    # Parsers recurse, so the depth is known before one is started.
    if _depth(text) > MAX_DEPTH:
        return f"nested too deeply, allowed 0..{MAX_DEPTH} levels"
    try:
        value = json.loads(text, parse_constant=_reject_constant)
    except ValueError:
        return "must be JSON"
    return None if isinstance(value, dict) or not must_be_object else "must be a JSON object"


def _depth(text: str) -> int:
    depth = deepest = 0
    for match in _STRUCTURE.finditer(text):
        if match[0] in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif match[0] in "]}":
            depth -= 1
    return deepest


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
