"""Every case that is one step simpler than another: for the search for the smallest one. Asks nobody."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace

from enginewire.conformance.client_side.oracle.case import Case

SHAPE = ("tokens", "ends", "messages", "apart", "stop", "prompt")
"""What has no default to go back to, or smaller forms beside it."""


def smaller(case: Case) -> Iterator[Case]:
    """The largest steps first."""
    for index in range(case.n if case.n > 1 else 0):
        yield _without_choice(case, index)
    for each in fields(Case):
        if each.name in case.options and each.name not in SHAPE:
            yield case.changed(each.name, each.default)
    for name in ("prompt", "stop", "apart"):
        listed: tuple[object, ...] = getattr(case, name)
        yield from (case.changed(name, ()) for _ in listed[1:2])
        yield from (case.changed(name, listed[:place] + listed[place + 1 :]) for place in range(len(listed)))
    yield from _fewer_tokens(case)
    yield from _fewer_messages(case)
    yield from _shorter_stops(case)
    yield from _nearer(case)


def _without_choice(case: Case, gone: int) -> Case:
    kept = [index for index in range(case.n) if index != gone]
    return replace(
        case,
        tokens=tuple(case.tokens[index] for index in kept),
        ends=tuple(case.ends[index] for index in kept),
        messages=tuple((kept.index(index), count) for index, count in case.messages if index != gone),
        apart=tuple(kept.index(index) for index in case.apart if index != gone),
    )


def _fewer_tokens(case: Case) -> Iterator[Case]:
    for index, tokens in enumerate(case.tokens):
        half = len(tokens) // 2
        spans = [(0, half), (half, len(tokens))] if half > 1 else []
        spans += [(place, place + 1) for place in range(len(tokens))]
        for begin, end in spans:
            yield _without_tokens(case, index, begin, end)


def _without_tokens(case: Case, index: int, begin: int, end: int) -> Case:
    messages, place = [], 0
    for other, count in case.messages:
        kept = count
        if other == index:
            kept -= sum(begin <= position < end for position in range(place, place + count))
            place += count
        messages.append((other, kept))
    tokens = case.tokens[index][:begin] + case.tokens[index][end:]
    every = (*case.tokens[:index], tokens, *case.tokens[index + 1 :])
    return replace(case, tokens=every, messages=tuple(each for each in messages if each[1]))


def _fewer_messages(case: Case) -> Iterator[Case]:
    for place in range(len(case.messages) - 1):
        (index, count), (other, more) = case.messages[place : place + 2]
        if index == other:
            joined = ((index, count + more),)
            yield replace(case, messages=case.messages[:place] + joined + case.messages[place + 2 :])


def _shorter_stops(case: Case) -> Iterator[Case]:
    for place, stop in enumerate(case.stop):
        for shorter in {stop[1:], stop[:-1]} - {""}:
            yield replace(case, stop=(*case.stop[:place], shorter, *case.stop[place + 1 :]))


def _nearer(case: Case) -> Iterator[Case]:
    """Numbers that come down one by one."""
    for name in ("min_tokens", "max_tokens", "refusals", "lost", "gap", "repeat"):
        number = getattr(case, name)
        if name in case.options and isinstance(number, int) and number > 0:
            yield case.changed(name, number - 1)
