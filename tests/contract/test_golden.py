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


def test_each_message_serializes_to_its_golden_bytes() -> None:
    golden = recorded(pb.CONTRACT_REVISION)
    for message in contract_messages():
        data = populated(message).SerializeToString(deterministic=True)
        assert data.hex() == golden[message.full_name].hex(), message.full_name


def test_golden_bytes_parse_to_the_message_they_came_from() -> None:
    golden = recorded(pb.CONTRACT_REVISION)
    for message in contract_messages():
        original = populated(message)
        assert type(original).FromString(golden[message.full_name]) == original, message.full_name


@pytest.mark.parametrize("revision", REVISIONS)
def test_bytes_of_every_revision_are_still_understood_in_full(revision) -> None:
    for name, data in recorded(revision).items():
        parsed = symbol_database.Default().GetSymbol(name).FromString(data)
        assert len(UnknownFieldSet(parsed)) == 0, name
        assert parsed.SerializeToString(deterministic=True) == data, name


def test_a_populated_message_has_every_field_but_the_oneof_members_that_lost() -> None:
    for message in contract_messages():
        lost = {field.name for oneof in message.oneofs for field in oneof.fields[:-1]}
        found = {field.name for field, _ in populated(message).ListFields()}
        assert found == set(message.fields_by_name) - lost, message.full_name
