"""Builds requests: a minimal good one, and changes of it by field name. Opens nothing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from google.protobuf.message import Message

from enginewire import v1 as pb

PROMPT_TOKENS: Final = 8
OUTPUT_TOKENS: Final = 4

PARTS: Final = ("", "stop_conditions", "sampling_options", "output_options", "routing")
"""Where a field name is looked for below PreprocessedRequest, in this order."""

Value = object


def good_request(request_id: str, prompt: Iterable[int]) -> pb.GenerateRequest:
    """A request that every engine serves: greedy, few tokens, no end by EOS."""
    return pb.GenerateRequest(
        request_id=request_id,
        request=pb.PreprocessedRequest(
            token_ids=prompt,
            stop_conditions=pb.StopConditions(max_tokens=OUTPUT_TOKENS, ignore_eos=True),
            sampling_options=pb.SamplingOptions(temperature=0.0),
        ),
    )


def change(request: pb.GenerateRequest, **changes: Value) -> pb.GenerateRequest:
    """A copy in which fields have other values; None clears one.

    Names are those of GenerateRequest, PreprocessedRequest, or of its stop_conditions,
    sampling_options, output_options or routing: `max_tokens=4`, `seed=1`, `logprobs=2`.
    """
    changed = pb.GenerateRequest()
    changed.CopyFrom(request)
    for name, value in changes.items():
        _set(_owner(changed, name), name, value)
    return changed


def path_of(name: str) -> str:
    """The path that an ErrorDetail gives a field: `max_tokens` is `stop_conditions.max_tokens`."""
    request = pb.PreprocessedRequest()
    for part in PARTS:
        owner = getattr(request, part) if part else request
        if name in owner.DESCRIPTOR.fields_by_name:
            return f"{part}.{name}" if part else name
    return name


def prompt(length: int, vocab_size: int, avoid: Iterable[int] = (), salt: int = 0) -> list[int]:
    """Valid token ids, the same for the same arguments, none of `avoid` among them."""
    usable = max(vocab_size, 1)
    avoided = set(avoid)
    ids: list[int] = []
    number = 1 + salt * 7919
    while len(ids) < length:
        # A prime step walks through the whole vocabulary, away from the special ids at its start.
        number += 104_729
        if number % usable not in avoided or len(avoided) >= usable:
            ids.append(number % usable)
    return ids


def _owner(request: pb.GenerateRequest, name: str) -> Message:
    if name in pb.GenerateRequest.DESCRIPTOR.fields_by_name:
        return request
    for part in PARTS:
        owner: Message = getattr(request.request, part) if part else request.request
        if name in owner.DESCRIPTOR.fields_by_name:
            return owner
    raise TypeError(f"no field of a request is called {name}")


def _set(owner: Message, name: str, value: Value) -> None:
    owner.ClearField(name)
    if value is None:
        return
    if owner.DESCRIPTOR.fields_by_name[name].is_repeated:
        getattr(owner, name).extend(value)
    elif isinstance(value, Message):
        getattr(owner, name).CopyFrom(value)
    else:
        setattr(owner, name, value)
