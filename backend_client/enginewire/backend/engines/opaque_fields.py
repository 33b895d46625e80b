"""What is passed on unread, held to its bounds: an engine may leave it unread as well.

Which fields those are is read from the rules of the contract.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import grpc

from enginewire import v1 as pb
from enginewire.backend.engines.failure import failed
from enginewire.field_rules import FIELD_RULES, UNBOUNDED, Rule
from enginewire.v1.json_text import json_fault


def check_opaque(request: pb.PreprocessedRequest) -> None:
    """Raise RequestFailed for the first opaque field that is beyond its bounds."""
    for names, rule in BOUNDED:
        value: Any = request  # of the field in the end, which may be of any type
        for name in names:
            value = getattr(value, name)
        if value and (fault := _fault(value, rule)):
            code, reason = grpc.StatusCode.INVALID_ARGUMENT, pb.ERROR_REASON_INVALID_REQUEST
            raise failed(code, reason, f"{rule.path}: {fault}", field=rule.path)


def _fault(value: bytes | Sequence[str], rule: Rule) -> str | None:
    if isinstance(value, bytes):
        return json_fault(value, must_be_object=rule.json == pb.JSON_KIND_OBJECT)
    if len(value) > rule.bound:
        return f"too many, got {len(value)}, allowed 0..{rule.bound}"
    longest = max(len(entry.encode()) for entry in value)
    if longest > rule.max_entry_bytes:
        return f"an entry is too long, got {longest} bytes, allowed 0..{rule.max_entry_bytes}"
    return None


BOUNDED: Final = tuple(
    (rule.path.split("."), rule)
    for rule in FIELD_RULES.values()
    if rule.field_class == pb.FIELD_CLASS_OPAQUE and rule.bound < UNBOUNDED and not rule.is_in_list
)
"""With the names that lead to them: lists of texts, and JSON in bytes."""
