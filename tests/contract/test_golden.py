from __future__ import annotations

import pytest
from google.protobuf import symbol_database
from google.protobuf.unknown_fields import UnknownFieldSet

from enginewire import v1 as pb
from tests.contract.golden import current, recorded
from tests.contract.populated import contract_messages, populated

REVISIONS = range(1, pb.CONTRACT_REVISION + 1)


def test_every_message_has_golden_bytes_and_no_message_is_gone() -> None:
    assert recorded(pb.CONTRACT_REVISION).keys() == current().keys()


@pytest.mark.parametrize("message", contract_messages(), ids=lambda message: message.name)
def test_a_message_serializes_to_its_golden_bytes(message) -> None:
    data = populated(message).SerializeToString(deterministic=True)
    assert data.hex() == recorded(pb.CONTRACT_REVISION)[message.full_name].hex()


@pytest.mark.parametrize("message", contract_messages(), ids=lambda message: message.name)
def test_golden_bytes_parse_to_the_message_they_came_from(message) -> None:
    original = populated(message)
    assert type(original).FromString(recorded(pb.CONTRACT_REVISION)[message.full_name]) == original


@pytest.mark.parametrize("revision", REVISIONS)
def test_bytes_of_every_revision_are_still_understood_in_full(revision) -> None:
    for name, data in recorded(revision).items():
        parsed = symbol_database.Default().GetSymbol(name).FromString(data)
        assert len(UnknownFieldSet(parsed)) == 0, name
        assert parsed.SerializeToString(deterministic=True) == data, name


@pytest.mark.parametrize("message", contract_messages(), ids=lambda message: message.name)
def test_a_populated_message_has_every_field_but_the_oneof_members_that_lost(message) -> None:
    instance = populated(message)
    lost = {field.name for oneof in message.oneofs for field in oneof.fields[:-1]}
    assert {field.name for field, _ in instance.ListFields()} == set(message.fields_by_name) - lost
