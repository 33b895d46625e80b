"""Builds requests: a minimal good one, and changes of it by field name. Opens nothing."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import islice
from operator import eq
from typing import Final

from google.protobuf.message import Message

from enginewire import v1 as pb

PROMPT_TOKENS: Final = 8
OUTPUT_TOKENS: Final = 4

PARTS: Final = ("", "stop_conditions", "sampling_options", "output_options", "routing")
"""Where a field name is looked for below PreprocessedRequest, in this order."""

LONG_REASON: Final = "for reasons " * 400
"""Of an abort: more than a status has room for."""

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


def num_alike(prompt: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two prompts have in common before the first one that differs."""
    return [*map(eq, prompt, other), False].index(False)


def path_of(name: str) -> str:
    """The path that an ErrorDetail gives a field: `max_tokens` is `stop_conditions.max_tokens`."""
    request = pb.PreprocessedRequest()
    for part in PARTS:
        owner = getattr(request, part) if part else request
        if name in owner.DESCRIPTOR.fields_by_name:
            return f"{part}.{name}" if part else name
    return name


def prompt(length: int, vocab_size: int, avoid: Iterable[int] = (), salt: int = 0) -> list[int]:
    """Valid token ids, the same for the same arguments, none of `avoid` among them.

    No id comes twice before all have come once, and another `salt` gives another order: prompts of different
    checks must not meet in a prefix cache, however small the vocabulary is.
    """
    return list(_prompt(length, max(vocab_size, 1), frozenset(avoid), salt))


@lru_cache(maxsize=64)
def _prompt(length: int, usable: int, avoided: frozenset[int], salt: int) -> tuple[int, ...]:
    """Most requests of a run have the same one."""
    if len(avoided) >= usable:
        avoided = frozenset()
    shuffled = (token for token in _shuffles(usable, salt) if token not in avoided)
    return tuple(islice(shuffled, length))


def _shuffles(count: int, seed: int) -> Iterator[int]:
    """All numbers below `count` in an order drawn by `seed`, then in another one, without end."""
    draw = random.Random(seed).randrange
    while True:
        # A shuffle that is begun and not finished touches only what it gives.
        swapped: dict[int, int] = {}
        for place in range(count):
            other = draw(place, count)
            yield swapped.get(other, other)
            swapped[other] = swapped.get(place, place)


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
