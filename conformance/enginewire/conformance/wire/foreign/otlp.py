"""Spans as OpenTelemetry's protocol carries them, as far as the kit reads and writes them.

See opentelemetry/proto/trace/v1/trace.proto. Fields that are not here are skipped when they come.
"""

from __future__ import annotations

from typing import Any, Final

from google.protobuf.message import Message

from enginewire.conformance.wire.foreign.classes import Field, Fields, classes

EXPORT: Final = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"

_FIELDS: Final[dict[str, Fields]] = {
    "Request": (("resource_spans", 1, "ResourceSpans"),),
    "ResourceSpans": (("resource", 1, "Resource"), ("scope_spans", 2, "ScopeSpans")),
    "Resource": (("attributes", 1, "KeyValue"),),
    "ScopeSpans": (("spans", 2, "Span"),),
    "Span": (
        ("trace_id", 1, Field.TYPE_BYTES),
        ("span_id", 2, Field.TYPE_BYTES),
        ("trace_state", 3, Field.TYPE_STRING),
        ("parent_span_id", 4, Field.TYPE_BYTES),
        ("name", 5, Field.TYPE_STRING),
        ("start_time_unix_nano", 7, Field.TYPE_FIXED64),
        ("end_time_unix_nano", 8, Field.TYPE_FIXED64),
        ("attributes", 9, "KeyValue"),
        ("events", 11, "Event"),
        ("links", 13, "Link"),
        ("status", 15, "Status"),
    ),
    "Event": (("name", 2, Field.TYPE_STRING), ("attributes", 3, "KeyValue")),
    "Link": (("attributes", 4, "KeyValue"),),
    "Status": (("message", 2, Field.TYPE_STRING),),
    "KeyValue": (("key", 1, Field.TYPE_STRING), ("value", 2, "AnyValue")),
    "AnyValue": (
        ("string_value", 1, Field.TYPE_STRING),
        ("int_value", 3, Field.TYPE_INT64),
        ("array_value", 5, "ArrayValue"),
        ("kvlist_value", 6, "KeyValueList"),
        ("bytes_value", 7, Field.TYPE_BYTES),
    ),
    "ArrayValue": (("values", 1, "AnyValue"),),
    "KeyValueList": (("values", 1, "KeyValue"),),
}
"""As they are encoded; the name of the first message is the kit's own."""

CLASSES: Final = classes(
    "opentelemetry.proto",
    _FIELDS,
    repeated={"resource_spans", "scope_spans", "spans", "attributes", "events", "links", "values"},
    unions={"AnyValue"},
)
Request: Final = CLASSES["Request"]
Span: Final = CLASSES["Span"]


SINGLE: Final = (str, bytes, int, Message)


def leaves(message: Any) -> list[str]:
    """Every text and number in a message, in order, those of messages inside it too."""
    found: list[str] = []
    for field, value in message.ListFields():
        for each in [value] if isinstance(value, SINGLE) else value:
            if field.message_type:
                found += leaves(each)
            else:
                found.append(each.decode(errors="replace") if isinstance(each, bytes) else str(each))
    return found
