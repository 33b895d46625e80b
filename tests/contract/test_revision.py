from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2

from enginewire import v1 as pb
from enginewire.v1 import revision
from tests.repository import ROOT

BASELINE = ROOT / ".ci" / "baseline"


def released_files() -> list[descriptor_pb2.FileDescriptorProto]:
    released = descriptor_pb2.FileDescriptorSet.FromString((BASELINE / "enginewire_v1.binpb").read_bytes())
    # buf adds a field of its own to each file of an image.
    released.DiscardUnknownFields()
    return [file for file in released.file if file.package == "enginewire.v1"]


def own_files() -> list[descriptor_pb2.FileDescriptorProto]:
    files = []
    for descriptor in revision.FILES:
        file = descriptor_pb2.FileDescriptorProto()
        descriptor.CopyToProto(file)
        files.append(file)
    return files


def test_the_contract_is_the_released_one_or_has_a_greater_revision() -> None:
    released_revision = int((BASELINE / "REVISION").read_text())
    unchanged = revision.digest_of(released_files()) == pb.schema_digest()
    assert unchanged or released_revision < pb.CONTRACT_REVISION
    assert released_revision <= pb.CONTRACT_REVISION


def test_the_accepted_revisions_are_a_range_that_begins_at_1_or_later() -> None:
    assert 1 <= pb.MINIMUM_CLIENT_REVISION <= pb.CONTRACT_REVISION


def test_the_digest_covers_every_file_of_the_contract() -> None:
    sources = {path.name for path in (ROOT / "proto/enginewire/v1").glob("*.proto")}
    assert {Path(file.name).name for file in revision.FILES} == sources


def test_the_digest_is_a_sha_256_in_hex() -> None:
    assert len(bytes.fromhex(pb.schema_digest())) == hashlib.sha256().digest_size


def test_the_digest_does_not_depend_on_the_order_of_the_files() -> None:
    files = own_files()
    assert revision.digest_of(files[::-1]) == revision.digest_of(files) == pb.schema_digest()


def test_the_digest_ignores_options_comments_and_json_names() -> None:
    files = own_files()
    files[0].options.java_package = "elsewhere"
    files[0].source_code_info.location.add(leading_comments="clearer")
    files[0].message_type[0].field[0].json_name = "other"
    assert revision.digest_of(files) == pb.schema_digest()


@pytest.mark.parametrize(
    "change",
    [
        lambda file: file.message_type.add(name="New"),
        lambda file: file.message_type[0].field.add(name="new", number=99),
        lambda file: setattr(file.message_type[0].field[0], "number", 98),
        lambda file: setattr(file.message_type[0].field[0], "name", "renamed"),
        lambda file: setattr(file.service[0].method[0], "server_streaming", True),
    ],
)
def test_the_digest_changes_with_the_descriptors(change) -> None:
    files = own_files()
    change(next(file for file in files if file.service))
    assert revision.digest_of(files) != pb.schema_digest()
