"""Message classes from a table of their fields, in a pool of their own."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

Field = descriptor_pb2.FieldDescriptorProto
Fields = tuple[tuple[str, int, Field.Type.ValueType | str], ...]
"""Name, number and type of each; the type of a nested message is its name in the table."""


def classes(
    package: str, table: Mapping[str, Fields], repeated: Collection[str], unions: Collection[str] = ()
) -> dict[str, Any]:
    """A class for each name of the table. `repeated`: the fields that are lists, wherever they are.

    `unions`: messages that have one of their fields, which says something with its default value too.
    """
    file = descriptor_pb2.FileDescriptorProto(name="kit.proto", package=package, syntax="proto3")
    for name, fields in table.items():
        message = file.message_type.add(name=name)
        if name in unions:
            message.oneof_decl.add(name="one")
        for field, number, kind in fields:
            label = Field.LABEL_REPEATED if field in repeated else Field.LABEL_OPTIONAL
            added = message.field.add(name=field, number=number, label=label)
            if name in unions:
                added.oneof_index = 0
            if isinstance(kind, str):
                added.type, added.type_name = Field.TYPE_MESSAGE, f".{package}.{kind}"
            else:
                added.type = kind
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    named = {name: pool.FindMessageTypeByName(f"{package}.{name}") for name in table}
    return {name: message_factory.GetMessageClass(descriptor) for name, descriptor in named.items()}
