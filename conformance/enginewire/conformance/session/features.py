"""For each capability the request that uses it and nothing else, and how far fields may go.

One table for two sides: what is advertised must work (INF-09), what is not must be refused (ERR-17).
Capabilities with RPCs of their own are not here: their areas say what uses them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from enginewire import v1 as pb
from enginewire.conformance.session.fields import FLOATS
from enginewire.conformance.session.requests import PARTS, Value
from enginewire.field_rules import FIELD_RULES, UNBOUNDED, Rule
from enginewire.v1.json_text import MAX_BYTES

FEATURES: Final[dict[str, dict[str, Value]]] = {
    "seed": {"seed": 7},
    "multiple_choices": {"n": 2},
    "best_of": {"best_of": 2},
    "beam_search": {"use_beam_search": True},
    "min_p": {"min_p": 0.1},
    "penalties": {"presence_penalty": 0.5},
    "logit_bias": {"logit_bias": [pb.LogitBias(token_id=1, bias=1.0)]},
    "allowed_token_ids": {"allowed_token_ids": [1]},
    "bad_words": {"bad_words_token_ids": [pb.TokenSequence(token_ids=[1, 1])]},
    "logprobs": {"logprobs": 0},
    "prompt_logprobs": {"prompt_logprobs": 0},
    "selected_logprobs": {"logprob_token_ids": [1]},
    "guided_modes": {"guided_decoding": pb.GuidedDecoding(json_object=True)},
    "stop_strings": {"stop": ["never to be seen"]},
    "max_thinking_tokens": {"max_thinking_tokens": 1},
    "priority": {"priority": 1},
    "resume": {"resume": pb.Resume(choices=[pb.ResumedChoice(generated_token_ids=[1])], attempt=1)},
}
"""Capability to changes of a good request; the first field changed is the one a refusal names."""

SERVED_ALONE: Final = frozenset(FEATURES) - {"guided_modes"}
"""Those whose request every engine that advertises them serves; guides have kinds."""


@dataclass(frozen=True, slots=True)
class Bound:
    """The most that a request may ask of one thing.

    `make` gives a value with so many: the number itself, a list of that length, a text of that size.
    """

    rule: Rule
    make: Callable[[int], Value]
    is_of_entries: bool = False
    """It is about the bytes of each entry of a list, not about how many there are."""
    mode: pb.GuidedMode.ValueType = pb.GUIDED_MODE_UNSPECIFIED
    """Which guide it is about."""

    @property
    def field(self) -> str:
        """What a request is changed by: the field itself, or the message that has it inside."""
        first, *rest = self.rule.path.split(".")
        return rest[0] if first in PARTS else first

    def is_offered(self, config: pb.EngineConfig) -> bool:
        """Whether requests may use the field."""
        if self.mode:
            return self.mode in config.capabilities.guided_modes
        return not self.rule.capability or bool(getattr(config.capabilities, self.rule.capability))

    def most(self, config: pb.EngineConfig) -> int:
        """As much as there may be at an engine; of tokens of the vocabulary there are no more than it has."""
        if self.is_of_entries:
            return self.rule.max_entry_bytes
        if self.mode:
            return MAX_BYTES
        most = self.rule.most(config.limits)
        return min(most, config.vocab_size) if self.rule.token_count else most

    @property
    def is_opaque(self) -> bool:
        """Whether an engine may leave it unread."""
        return self.rule.field_class == pb.FIELD_CLASS_OPAQUE

    @property
    def is_of_different_ids(self) -> bool:
        """There are no more of them than the vocabulary has."""
        return self.field == "logit_bias"


def _ids(count: int) -> Value:
    return [place % 2 for place in range(count)]


def _biases(count: int) -> Value:
    return [pb.LogitBias(token_id=place, bias=0.5) for place in range(count)]


def _words(count: int) -> Value:
    return [pb.TokenSequence(token_ids=[place % 2] * 3) for place in range(count)]


def _texts(count: int) -> Value:
    return ["never to be seen"] * count


def _text(count: int) -> Value:
    return [_wide(count)]


def _wide(count: int) -> str:
    """So many bytes, and about half as many characters."""
    return "é" * (count // 2) + "x" * (count % 2)


def _json(count: int) -> Value:
    """Not deep: its brackets are in a text, in which a quote does not end it."""
    brackets = min(count - 10, BRACKETS)
    return b'{"": "\\"%s%s"}' % (b"[" * brackets, _wide(count - 10 - brackets).encode())


def _extra(rule: Rule) -> Callable[[int], Value]:
    """In the message that bears it."""
    owner, name = rule.path.split(".")
    return lambda count: getattr(pb.PreprocessedRequest(**{owner: {name: _json(count)}}), owner)  # type: ignore[arg-type]  # of the rule


def _guide(rule: Rule) -> Callable[[int], Value]:
    """As a text that is quickly compiled: one character of a set, or a schema with a long comment."""
    name = rule.field.name
    head, tail = GUIDES[name][1:]
    room = len(head + tail)
    return lambda count: pb.GuidedDecoding(**{name: f"{head}{_wide(count - room)}{tail}"})  # type: ignore[arg-type]  # a text


def _choices(count: int) -> Value:
    """All of them together; each differs soon, and none is long."""
    lengths = [CHOICE_BYTES] * max(count // CHOICE_BYTES - 1, 0)
    lengths.append(count - sum(lengths))
    texts = [f"{number:04}{_wide(length - 4)}" for number, length in enumerate(lengths)]
    return pb.GuidedDecoding(choice=pb.GuidedChoice(choices=texts))


def _number(count: int) -> Value:
    return count


def _maker(rule: Rule) -> Callable[[int], Value]:
    if rule.field.message_type is not None:
        return _biases if rule.field.name == "logit_bias" else _words
    if rule.json:
        return _json
    if not rule.field.is_repeated:
        return _number
    return _ids if rule.token_ids else _texts


def _is_plain(rule: Rule) -> bool:
    """A request can be changed by the name of the field."""
    parts = rule.path.split(".")
    return not rule.is_in_list and (len(parts) == 1 or (len(parts) == 2 and parts[0] in PARTS))


def _is_extra(rule: Rule) -> bool:
    """JSON in a message that is for others as a whole."""
    owner, *rest = rule.path.split(".")
    return bool(rule.json) and len(rest) == 1 and FIELD_RULES[owner].field_class == pb.FIELD_CLASS_OPAQUE


def _bounds() -> Iterator[Bound]:
    for name, (mode, *_) in GUIDES.items():
        rule = FIELD_RULES[f"{GUIDE}.{name}"]
        yield Bound(rule, _guide(rule), mode=mode)
    yield Bound(FIELD_RULES[f"{GUIDE}.choice"], _choices, mode=pb.GUIDED_MODE_CHOICE)
    yield from (Bound(rule, _extra(rule)) for rule in FIELD_RULES.values() if _is_extra(rule))
    for rule in FIELD_RULES.values():
        if not _is_plain(rule) or rule.field.name in JUDGED_ELSEWHERE:
            continue
        if rule.bound < UNBOUNDED:
            yield Bound(rule, _maker(rule))
        if rule.max_entry_bytes < UNBOUNDED:
            yield Bound(rule, _text, is_of_entries=True)


def _ends(rule: Rule) -> Iterator[float]:
    kind = float if rule.field.cpp_type in FLOATS else int
    ends = (rule.min + 0.001 if rule.above_min else rule.min, rule.max)
    yield from (kind(end) for end in ends if math.isfinite(end))


BRACKETS: Final = 128
"""More than there may be levels."""
CHOICE_BYTES: Final = 64

GUIDE: Final = "sampling_options.guided_decoding"
GUIDES: Final = {
    "regex": (pb.GUIDED_MODE_REGEX, "[x", "]"),
    "ebnf_grammar": (pb.GUIDED_MODE_EBNF_GRAMMAR, "root ::= [x", "]"),
    "json_schema": (pb.GUIDED_MODE_JSON_SCHEMA, '{"type": "boolean", "description": "', '"}'),
}
"""Kinds of one text: the mode, and what stands around a long part of it."""

JUDGED_ELSEWHERE: Final = ("n", "best_of", "logprobs", "mm_processor_kwargs")
"""Their requirements say more: SEQ-06, ERR-17, LOG-09; and what only goes with other fields."""

BOUNDS: Final = tuple(_bounds())
"""Everything that the contract bounds in number or in bytes."""

RANGES: Final[tuple[tuple[str, str, tuple[Value, ...]], ...]] = (
    *(
        (rule.field.name, rule.capability, tuple(_ends(rule)))
        for rule in FIELD_RULES.values()
        if rule.has_range and _is_plain(rule) and rule.field.name not in JUDGED_ELSEWHERE
    ),
    (
        "logit_bias",
        "logit_bias",
        ([pb.LogitBias(token_id=0, bias=-100), pb.LogitBias(token_id=1, bias=100)],),
    ),
    ("seed", "seed", (0, 2**64 - 1)),
)
"""Field, the capability it needs, and the values at the ends of its range."""
