from __future__ import annotations

import pytest
from google.protobuf.descriptor import Descriptor

from enginewire import v1 as pb
from enginewire.server.validation.rules import GATES, JSON_OBJECTS, JSON_VALUES, LIMITS, RANGES, TOKEN_IDS
from tests.contract.field_classes import FIELD_CLASSES, FieldClass, field_class


def paths(descriptor: Descriptor, prefix: str = "") -> list[str]:
    """Every field path below a message, messages and their fields alike."""
    found = []
    for field in descriptor.fields:
        path = prefix + field.name
        found.append(path)
        if field.message_type is not None:
            found += paths(field.message_type, f"{path}.")
    return found


PATHS = paths(pb.PreprocessedRequest.DESCRIPTOR)
LEAVES = [path for path in PATHS if not any(other.startswith(f"{path}.") for other in PATHS)]


@pytest.mark.parametrize("path", LEAVES)
def test_every_field_has_a_class(path) -> None:
    assert isinstance(field_class(path), FieldClass)


def test_every_entry_names_a_field() -> None:
    assert set(FIELD_CLASSES) - set(PATHS) == set()


def test_no_entry_is_covered_by_another() -> None:
    assert [p for p in FIELD_CLASSES for q in FIELD_CLASSES if p.startswith(f"{q}.")] == []


def test_a_field_without_a_class_is_noticed() -> None:
    with pytest.raises(KeyError):
        field_class("sampling_options.not_yet_invented")


def test_the_backend_s_fields_are_those_an_engine_without_stop_strings_rejects() -> None:
    gated = {gate.field.path for gate in GATES if gate.capability == "stop_strings"}
    assert gated == {path for path, kind in FIELD_CLASSES.items() if kind is FieldClass.BACKEND}


def test_fields_with_a_rule_about_their_value_are_read_by_someone() -> None:
    ruled = {rule.field.path for rule in (*RANGES, *LIMITS, *TOKEN_IDS)}
    assert {field_class(path) for path in ruled} == {FieldClass.ENGINE}


def test_opaque_json_is_checked_wherever_there_is_some() -> None:
    opaque = {path for path in LEAVES if field_class(path) is FieldClass.OPAQUE}
    as_bytes = {path for path in opaque if _is_bytes(path)}
    assert as_bytes == {rule.field.path for rule in (*JSON_OBJECTS, *JSON_VALUES)}


def _is_bytes(path: str) -> bool:
    *parents, name = path.split(".")
    descriptor: Descriptor | None = pb.PreprocessedRequest.DESCRIPTOR
    for parent in parents:
        assert descriptor is not None
        descriptor = descriptor.fields_by_name[parent].message_type
    assert descriptor is not None
    field = descriptor.fields_by_name[name]
    return field.type == field.TYPE_BYTES
