"""Draws cases from a seed. Case 17 of a seed is the same however many are drawn."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from typing import Final

from enginewire.conformance.client_side.oracle.case import Case
from enginewire.conformance.client_side.oracle.possible import is_possible
from enginewire.conformance.client_side.oracle.predict import FAILED, outputs, predict
from enginewire.conformance.client_side.oracle.text import NotTold, decode
from enginewire.conformance.client_side.stage.alphabet import (
    EOS,
    EOS_TEXT,
    TURN,
    TURN_TEXT,
    UNKNOWN,
    Piece,
    ids,
)

FEW: Final[Sequence[Piece]] = ("a", "a", "a", "b", "b", "aab", "c", "abcd")
"""Texts that are full of beginnings of each other."""

MANY: Final[Sequence[Piece]] = (
    *("a", "b", " ", "  ", " ", "\n", "S", "ST", "STOP", "word", " END and", "xyEND", "stream"),
    *(
        "\u00e9",
        " \u00e9",
        "e\u0301",
        "\u65e5\u672c",
        "\u65e5",
        "\U0001f642",
        "\U0001f642!",
        "\U0001f469\u200d\U0001f4bb",
    ),
)
ODD: Final[Sequence[Sequence[Piece]]] = (
    *((TURN,), (TURN,), (UNKNOWN,), (EOS,), (b"\xc3",), (b"\xff",), (b"\xf0\x9f",), (b"\xed\xa0",)),
    *(
        (b"\xf0\x9f\xff",),
        (b"\xc3", TURN, b"\xa9"),
        (b"\xf0\x9f", UNKNOWN, b"\x99\x82"),
        (TURN, " "),
        (TURN, " END and"),
    ),
)
"""Special tokens, an id without a meaning, bytes that are no character; some of them within others."""

PROMPTS: Final[Sequence[Sequence[Piece]]] = (
    *((), (), (), (" ",), ("word",), ("STOP",), ("word", "a"), (TURN,), ("word", b"\xc3"), (b"\xf0\x9f",)),
    *(("a", "a"), ("word", TURN), (b"\xf0\x9f\x99",)),
)
CAUGHT: Final = {b"\xc3": b"\xa9", b"\xf0\x9f": b"\x99\x82", b"\xf0\x9f\x99": b"\x82"}
"""How the characters go on that prompts begin."""


EVERY: Final = 12
"""One case of so many is a failure beside a stop, which random ends would hardly ever be."""


def draw(seed: int, number: int) -> Case:
    """Case `number` of a seed."""
    for attempt in count():
        case = _case(random.Random(f"{seed}/{number}/{attempt}"))
        if is_possible(case):
            return _failed(case, number // EVERY) if number % EVERY == 0 else case
    raise AssertionError("counting has no end")


def _failed(case: Case, number: int) -> Case:
    """Its first choice alone, in one output that says a failure too; as it was where nobody plays that."""
    tokens = case.tokens[0]
    failed = Case(
        tokens=(tokens,),
        ends=(FAILED[number % len(FAILED)],),
        messages=((0, len(tokens)),) if tokens else (),
        prompt=case.prompt,
        spaced=case.spaced,
        stop=case.stop,
        include_stop_str_in_output=case.include_stop_str_in_output,
    )
    return failed if is_possible(failed) else case


def _case(rng: random.Random) -> Case:
    spaced = rng.random() < 0.4
    pieces = FEW if rng.random() < 0.35 else MANY
    prompt = rng.choice(PROMPTS)
    n = rng.choice((1, 1, 1, 2, 2, 3))
    tokens = [_tokens(rng, pieces, prompt) for _ in range(n)]
    case = Case(
        tokens=tuple(map(tuple, tokens)),
        ends=("LENGTH",) * n,
        messages=(),
        prompt=tuple(ids(*prompt)),
        spaced=spaced,
        skip_special_tokens=rng.choice((None, None, True, False, False)),
        ignore_eos=rng.random() < 0.25,
        include_stop_str_in_output=rng.random() < 0.35,
        logprobs=rng.random() < 0.25,
    )
    case = replace(case, stop=_stops(rng, case)) if rng.random() < 0.8 else case
    case = _ended(rng, case)
    case = replace(case, messages=_messages(rng, case))
    return _disturbed(rng, case)


def _tokens(rng: random.Random, pieces: Sequence[Piece], prompt: Sequence[Piece]) -> list[int]:
    size = rng.randint(1, 8)
    drawn = [rng.choice(ODD) if rng.random() < 0.1 else (rng.choice(pieces),) for _ in range(size)]
    rest = CAUGHT.get(prompt[-1]) if prompt and isinstance(prompt[-1], bytes) else None
    begins = [rest] if rest and rng.random() < 0.7 else []
    return ids(*begins, *(piece for group in drawn for piece in group))


def _stops(rng: random.Random, case: Case) -> tuple[str, ...]:
    """Parts of the text, near misses of them, and what belongs to special tokens."""
    text = _text(rng.choice(case.tokens), case)
    found: list[str] = []
    for _ in range(rng.choice((1, 1, 2, 2, 3, 4))):
        begin = rng.randrange(len(text) + 1)
        stop = text[begin : begin + rng.choice((1, 2, 2, 3, 3, 4, 6))]
        way = rng.random()
        if way < 0.1:
            stop = rng.choice((TURN_TEXT, EOS_TEXT, "\ufffd", "STOP", text))
        elif way < 0.3 and found:
            stop = rng.choice((found[-1][:-1], found[-1][1:], found[-1] + rng.choice("abx "), found[-1]))
        elif way < 0.5:
            stop = rng.choice((stop + rng.choice("abx"), rng.choice("ab") + stop))
        found += [stop] if stop else []
    return tuple(found)


def _text(tokens: Sequence[int], case: Case) -> str:
    """About what the text will be."""
    shown = [token for token in (*ids("x"), *tokens) if not case.skips or token not in (EOS, TURN)]
    try:
        text = decode(shown, spaced=case.spaced)
    except NotTold:
        return "ab"
    return (text.shown + (text.rest or ""))[1:]


def _ended(rng: random.Random, case: Case) -> Case:
    """With what ends its choices: lengths, stop ids, failures."""
    place = _place(rng, case)
    if rng.random() < 0.35:
        case = replace(case, max_tokens=max(1, place + rng.choice((-1, 0, 0, 1, 2))))
    if rng.random() < 0.4:
        case = replace(case, min_tokens=min(max(1, place + rng.choice((-1, 0, 1, 1, 2))), case.max_tokens))
    tokens, ends = list(case.tokens), list(case.ends)
    listed: dict[str, tuple[int, ...]] = {}
    for index in range(case.n):
        way = rng.random()
        if way < 0.2:
            tokens[index], ends[index] = (*tokens[index], EOS), "EOS"
        elif way < 0.45:
            name = rng.choice(("stop_token_ids", "stop_token_ids_visible", "stop_token_ids_hidden"))
            token = rng.choice((*ids("Z", "word", "STOP", TURN), tokens[index][-1]))
            listed[name] = (token, *([EOS] if rng.random() < 0.1 else []))
            tokens[index] = (*tokens[index], token)
            ends[index] = "EOS" if name == "stop_token_ids_hidden" else "STOP"
        elif way < 0.55 and case.n == 1:
            ends[index] = rng.choice(FAILED)
        elif way < 0.6:
            ends[index] = "EOS"
    apart = tuple(index for index in range(case.n) if rng.random() < 0.35)
    return replace(case, tokens=tuple(tokens), ends=tuple(ends), apart=apart, **listed)  # type: ignore[arg-type]


def _place(rng: random.Random, case: Case) -> int:
    """Where a choice ends as it is, most of the time: limits are drawn around it."""
    index = rng.randrange(case.n)
    tokens = case.tokens[index]
    alone = replace(case, tokens=(tokens,), ends=("LENGTH",), messages=((0, len(tokens)),))
    try:
        [due] = predict(alone)
    except NotTold:
        return len(tokens)
    return due.least_count if rng.random() < 0.7 else rng.randint(1, len(tokens))


def _messages(rng: random.Random, case: Case) -> tuple[tuple[int, int], ...]:
    """The tokens of all choices in outputs of any size, in turns."""
    most = rng.choice((1, 1, 2, 3, 100))
    left = [len(tokens) for tokens in case.tokens]
    messages = []
    while any(left):
        index = rng.choice([index for index, size in enumerate(left) if size])
        size = min(left[index], rng.randint(1, most) if most < 100 else most)
        messages.append((index, size))
        left[index] -= size
    return tuple(messages)


def _disturbed(rng: random.Random, case: Case) -> Case:
    """With what goes wrong on the way."""
    if rng.random() < 0.12:
        after = rng.choice((0, 0, 40, 120))
        case = replace(case, refusals=rng.choice((1, 1, 1, 2, 2, 6)), retry_after_ms=after)
    way, place = rng.random(), rng.randrange(len(outputs(case)))
    if way < 0.25:
        return replace(case, lost=place)
    if way < 0.29:
        return replace(case, gap=place)
    if way < 0.33:
        return replace(case, repeat=place)
    most = min(map(len, case.tokens)) - 1
    if way < 0.43 and most:
        # All choices end here, at the latest when the engine sends a token more than it may.
        return replace(case, waits=True, max_tokens=most, min_tokens=min(case.min_tokens, most))
    return case
