"""Requests with fields chosen and filled at random."""

from __future__ import annotations

import math
import random

from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from enginewire import v1 as pb
from tests.server.validation.requests_to_check import VOCAB, set_field


def random_request(rng: random.Random) -> pb.PreprocessedRequest:
    """Fields chosen and filled at random, most of them with values that just hold or just do not."""
    request = _random_message(rng, pb.PreprocessedRequest.DESCRIPTOR, share=rng.choice([0.1, 0.3]))
    assert isinstance(request, pb.PreprocessedRequest)
    if rng.random() < 0.9:  # else few would get past the first checks
        request.token_ids[:] = [1]
        for name in ("model", "prompt_embeds", "prefill_result", "bootstrap_info"):
            request.ClearField(name)
    return request


def _random_message(rng: random.Random, descriptor: Descriptor, share: float) -> Message:
    message = message_factory.GetMessageClass(descriptor)()
    for field in descriptor.fields:
        if rng.random() >= share:
            continue
        values = [
            _random_value(rng, field, share) for _ in range(rng.randint(0, 3) if field.is_repeated else 1)
        ]
        set_field(message, field.name, values if field.is_repeated else values[0])
    return message


def _random_value(rng: random.Random, field: FieldDescriptor, share: float) -> object:
    if field.message_type is not None:
        return _random_message(rng, field.message_type, share)
    if field.cpp_type in (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE):
        return rng.choice([0.0, 1.0, -1.0, 0.5, 2.1, 1e30, math.nan, math.inf, -math.inf])
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return rng.random() < 0.5
    if field.type == FieldDescriptor.TYPE_STRING:
        return rng.choice(["", "tiny", "image_url", "{}", "a" * 2000, "\x1b[31m\u202e"])
    if field.type == FieldDescriptor.TYPE_BYTES:
        return rng.choice([b"", b"{}", b"[" * 100, b"\xff", b'{"a": 1}'])
    if field.cpp_type in (FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_ENUM):
        return rng.choice([0, 1, 2, 99, -1, 2**31 - 1])
    return rng.choice([0, 1, 2, 5, VOCAB - 1, VOCAB, 2**32 - 1])
