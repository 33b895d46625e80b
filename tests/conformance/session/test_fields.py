from __future__ import annotations

import math

import pytest
from google.protobuf.descriptor import FieldDescriptor

from enginewire import v1 as pb
from enginewire.conformance.session.fields import (
    ENUMS,
    FLOATS,
    FieldPath,
    fields_of,
    length_delimited,
    text_fields,
    unknown_fields,
    varint,
    without_indexes,
)


def path(name: str, types: tuple[int, ...] = FLOATS) -> FieldPath:
    return next(path for path in fields_of(types) if path.name == name)


def test_floats_are_found_however_deep() -> None:
    names = {path.name for path in fields_of(FLOATS)}
    assert {
        "sampling_options.temperature",
        "sampling_options.logit_bias.bias",
        "prefill_result.handoff.ttl_seconds",
    } <= names
    assert "sampling_options.top_k" not in names


def test_enums_are_found() -> None:
    assert all(path.steps[-1].enum_type is not None for path in fields_of(ENUMS))
    assert fields_of(ENUMS)


def test_text_is_not_bytes() -> None:
    assert {path.steps[-1].type for path in text_fields()} == {FieldDescriptor.TYPE_STRING}
    assert "prefill_result.handoff.params" not in {path.name for path in text_fields()}


def test_a_field_inside_a_repeated_message_is_put_into_its_first_entry() -> None:
    request = pb.GenerateRequest()
    request.request.sampling_options.logit_bias.add(token_id=7)
    path("sampling_options.logit_bias.bias").put(request, 0.5)
    (bias,) = request.request.sampling_options.logit_bias
    assert (bias.token_id, bias.bias) == (7, 0.5)


def test_what_leads_to_a_field_is_made() -> None:
    request = pb.GenerateRequest()
    path("sampling_options.logit_bias.bias").put(request, math.inf)
    assert request.request.sampling_options.logit_bias[0].bias == math.inf


def test_none_makes_only_what_leads_to_a_field() -> None:
    request = pb.GenerateRequest()
    path("prefill_result.handoff.ttl_seconds").put(request, None)
    assert request.request.prefill_result.HasField("handoff")
    assert not request.request.prefill_result.handoff.HasField("ttl_seconds")


def test_a_repeated_field_gets_one_more_value() -> None:
    texts = {path.name: path for path in text_fields()}
    request = pb.GenerateRequest()
    request.request.stop_conditions.stop.append("a")
    texts["stop_conditions.stop"].put(request, "b")
    assert list(request.request.stop_conditions.stop) == ["a", "b"]


@pytest.mark.parametrize("path", text_fields(), ids=lambda path: path.name)
def test_encoded_bytes_are_read_as_the_field_and_can_be_appended(path: FieldPath) -> None:
    written, expected = pb.GenerateRequest(request_id="a"), pb.GenerateRequest(request_id="a")
    path.put(expected, "value")
    written = pb.GenerateRequest.FromString(written.SerializeToString() + path.encoded(b"value"))
    assert written == expected


@pytest.mark.parametrize(
    ("value", "expected"), [(0, b"\x00"), (127, b"\x7f"), (128, b"\x80\x01"), (300, b"\xac\x02")]
)
def test_numbers_are_varints(value: int, expected: bytes) -> None:
    assert varint(value) == expected


def test_a_long_field_has_a_long_length() -> None:
    request = pb.GenerateRequest.FromString(length_delimited(1, b"x" * 200))
    assert request.request_id == "x" * 200


def test_unknown_fields_parse_and_mean_nothing() -> None:
    known = pb.GenerateRequest(request_id="a")
    read = pb.GenerateRequest.FromString(known.SerializeToString() + unknown_fields())
    assert read.ByteSize() > known.ByteSize()
    read.DiscardUnknownFields()  # type: ignore[attr-defined]  # of every message
    assert read == known


def test_indexes_are_left_out() -> None:
    assert without_indexes("a.b[0].c[12]") == "a.b.c"
