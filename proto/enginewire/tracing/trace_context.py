"""The trace that a request belongs to, as W3C writes it into metadata. Knows no spans."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from enginewire import v1 as pb

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"
# What W3C asks everyone to pass on; beyond it, room in the metadata of a call is scarce.
MAX_TRACESTATE: Final = 512
_VALID: Final = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?P<trace>(?!0{32})[0-9a-f]{32})-(?P<span>(?!0{16})[0-9a-f]{16})-[0-9a-f]{2}"
)


def passed_on(metadata: Mapping[str, str]) -> dict[str, str]:
    """What of a caller's metadata goes on with its request: its trace, unless it is malformed."""
    parent, state = metadata.get(TRACEPARENT, ""), metadata.get(TRACESTATE, "")
    if not _VALID.fullmatch(parent):
        return {}
    has_state = 0 < len(state) <= MAX_TRACESTATE
    return {TRACEPARENT: parent, TRACESTATE: state} if has_state else {TRACEPARENT: parent}


def add_link(part: pb.PreprocessedRequest, metadata: Mapping[str, str] | None) -> None:
    """Point at what was sent of the request before, which was under the trace and span in this metadata."""
    if found := _VALID.fullmatch((metadata or {}).get(TRACEPARENT, "")):
        part.migration_link.CopyFrom(pb.TraceLink(trace_id=found["trace"], span_id=found["span"]))


def headers_of_link(link: pb.TraceLink) -> dict[str, str]:
    """The same point as metadata; nothing when it is malformed."""
    return passed_on({TRACEPARENT: f"00-{link.trace_id}-{link.span_id}-00"})
