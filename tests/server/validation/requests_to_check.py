"""Requests to validate, changed one field at a time, and the engines that they are for."""

from __future__ import annotations

import time
from collections.abc import Callable

from google.protobuf.message import Message

from enginewire import v1 as pb
from enginewire.server.failures import EngineError
from enginewire.server.validation.generate import check_generate

VOCAB = 1000


CONTEXT = 512


EVERYTHING = pb.Capabilities(
    guided_modes=[mode for mode in pb.GuidedMode.values() if mode],
    multi_modal_part_types=["image_url"],
    **{f.name: True for f in pb.Capabilities.DESCRIPTOR.fields if f.cpp_type == f.CPPTYPE_BOOL},
)


Change = Callable[[pb.PreprocessedRequest], object]


def config(capabilities: pb.Capabilities = EVERYTHING, **fields: object) -> pb.EngineConfig:
    facts = {
        "model": "tiny",
        "aliases": ["small"],
        "vocab_size": VOCAB,
        "context_length": CONTEXT,
        "role": pb.ENGINE_ROLE_AGGREGATED,
        "limits": pb.Limits(max_n=16, max_logprobs=20),
    }
    return pb.EngineConfig(capabilities=capabilities, **{**facts, **fields})


def check(change: Change, engine: pb.EngineConfig | None = None) -> None:
    request = pb.PreprocessedRequest(token_ids=[1, 2, 3])
    change(request)
    check_generate(pb.GenerateRequest(request_id="r", request=request), engine or config())


def fields(**values: object) -> Change:
    """Sets fields by path, with `__` for the dots."""

    def change(request: pb.PreprocessedRequest) -> None:
        for path, value in values.items():
            *parents, name = path.split("__")
            owner: Message = request
            for parent in parents:
                owner = getattr(owner, parent)
            set_field(owner, name, value)

    return change


def set_field(owner: Message, name: str, value: object) -> None:
    descriptor = owner.DESCRIPTOR.fields_by_name[name]
    if descriptor.is_repeated:
        owner.ClearField(name)
        getattr(owner, name).extend(value)
    elif isinstance(value, Message):
        getattr(owner, name).CopyFrom(value)
    else:
        setattr(owner, name, value)


def ids(count: int) -> list[int]:
    return [5] * count


def bias(count: int) -> list[pb.LogitBias]:
    return [pb.LogitBias(token_id=i, bias=1.0) for i in range(count)]


def decoded(**values: object) -> Change:
    """An image in the memory of another process."""
    item = pb.MultiModalItem(decoded=pb.RdmaMediaDataDescriptor(**values))
    return fields(multi_modal_data=[pb.MultiModalPart(part_type="image_url", items=[item])])


def resumed(**values: object) -> pb.ResumedChoice:
    return pb.ResumedChoice(**values)


def failure_of(request: pb.GenerateRequest, engine: pb.EngineConfig) -> EngineError | None:
    try:
        check_generate(request, engine)
    except EngineError as error:
        return error
    return None


def seconds_of(call: Callable[[], object]) -> float:
    """Of this thread's processor time, whatever else runs here."""
    begin = time.thread_time()
    call()
    return time.thread_time() - begin
