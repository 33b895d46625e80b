"""Which revision of the contract this is, and the digest that pins it.

The revision grows with every change of the descriptors; `tests/contract/test_revision.py` compares
the digest with the baseline of the last release. Knows nothing about servers or clients.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import cache

from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import FileDescriptor

from enginewire.v1 import (
    admin_service_pb2,
    backend_service_pb2,
    discovery_service_pb2,
    embedding_service_pb2,
    engine_service_pb2,
    error_pb2,
    kv_service_pb2,
    output_pb2,
    request_pb2,
    rules_pb2,
)

CONTRACT_REVISION = 2
MINIMUM_CLIENT_REVISION = 1

FILES: tuple[FileDescriptor, ...] = tuple(
    module.DESCRIPTOR
    for module in (
        admin_service_pb2,
        backend_service_pb2,
        discovery_service_pb2,
        embedding_service_pb2,
        engine_service_pb2,
        error_pb2,
        kv_service_pb2,
        output_pb2,
        request_pb2,
        rules_pb2,
    )
)


def digest_of(files: list[descriptor_pb2.FileDescriptorProto]) -> str:
    """SHA-256 (hex) over the files in name order, each without its options, comments and json names.

    Language options (go_package …) do not travel, so they do not count. The rules of fields do.
    """
    digest = hashlib.sha256()
    for file in sorted(files, key=lambda file: file.name):
        plain = descriptor_pb2.FileDescriptorProto()
        plain.CopyFrom(file)
        plain.ClearField("options")
        plain.ClearField("source_code_info")
        _clear_json_names(plain.extension)
        for message in plain.message_type:
            _clear_json_names_of(message)
        digest.update(plain.SerializeToString(deterministic=True))
    return digest.hexdigest()


@cache
def schema_digest() -> str:
    """Digest of the contract this process was built with; GetEngineInfo reports it."""
    files = []
    for descriptor in FILES:
        file = descriptor_pb2.FileDescriptorProto()
        descriptor.CopyToProto(file)
        files.append(file)
    return digest_of(files)


def _clear_json_names_of(message: descriptor_pb2.DescriptorProto) -> None:
    _clear_json_names(message.field)
    for nested in message.nested_type:
        _clear_json_names_of(nested)


def _clear_json_names(fields: Iterable[descriptor_pb2.FieldDescriptorProto]) -> None:
    # Compilers differ in whether they fill in the default json_name.
    for field in fields:
        field.ClearField("json_name")
