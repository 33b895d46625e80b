"""The keys of an option whose value is a JSON object, as vLLM has some."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any


def json_fields(text: str, known: Sequence[str]) -> dict[str, Any]:
    """The object's keys and values. Raises ValueError for other JSON and for a key that is not known."""
    try:
        given = json.loads(text)
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from None
    if not isinstance(given, dict):
        raise ValueError("must be a JSON object")
    for name in given:
        if name not in known:
            raise ValueError(f"no key {name!r}; there are {', '.join(known)}")
    return given
