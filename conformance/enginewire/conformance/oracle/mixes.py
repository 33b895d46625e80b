"""Mixes: drawn cases beside options that change neither their tokens nor their end. Sends nothing.

What such an option is the greedy run tells: a mask that allows all of its tokens changes nothing. Beside a
run under other options there are those that never change anything. Some mixes are aborted, of some the caller
leaves or the deadline passes, so that the others have that beside them as well.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from enginewire import v1 as pb
from enginewire.conformance.oracle.case import Case, Cut
from enginewire.conformance.oracle.draw import MANY, Offer, draw
from enginewire.conformance.oracle.predict import is_possible
from enginewire.conformance.oracle.shrink import smaller as smaller_case
from enginewire.conformance.session.context import Greedy
from enginewire.conformance.session.requests import Value, path_of
from enginewire.field_rules import FIELD_RULES

FIRST: Final = 200_000
"""Of the cases that are mixed: others than those that are asked plainly, and those with a mistake."""

OF_CASES: Final = 400_000
"""Of those that repeat another run."""

CHANCE: Final = 0.35
SEVERAL: Final = 0.7
"""How often a case asks for several choices where they differ."""
ABORTED: Final = 0.2
LEFT: Final = 0.2
LATE: Final = 0.3
"""Of those that are left, how many by their deadline."""
HOT: Final = 1.5
UNLIKELY: Final = -50.0
SEED: Final = 7
ANSWERED: Final = 4
"""Annotations that are: what comes of them the monitor sees."""

Changes = Mapping[str, Value]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """A case and what is beside it: names of `options_of`. `is_aborted`: somebody aborts it at some time.

    `cut`: where its caller leaves it.
    """

    case: Case
    beside: tuple[str, ...] = ()
    is_aborted: bool = False
    cut: Cut | None = None

    @property
    def described(self) -> str:
        """In one line."""
        parts = [self.case.described, *self.beside, *(["aborted"] if self.is_aborted else [])]
        return ", ".join([*parts, *([self.cut.described] if self.cut else [])])


def options_of(run: Greedy, config: pb.EngineConfig) -> dict[str, Changes]:
    """What an engine offers that changes nothing of a greedy run, by name. Of two, the later one wins."""
    never = [token for token in range(config.vocab_size) if token not in run.tokens][:MANY]
    masked = sorted({*run.tokens, *never[: MANY // 2]})
    scored = [*sorted(set(run.tokens[:2]), reverse=True), *never[:2]]
    found: dict[str, dict[str, Value]] = {
        "defaults": _defaults(config),
        "top_k 1": {"temperature": HOT, "top_k": 1},
        "top_p": {"top_p": 0.5},
        "min_p": {"min_p": 0.1},
        "seed": {"seed": SEED},
        "logprob_token_ids": {"logprobs": 0, "logprob_token_ids": scored},
        "allowed_token_ids": {"allowed_token_ids": masked},
        "bad_words": {"bad_words_token_ids": [pb.TokenSequence(token_ids=[token]) for token in never]},
        "bad_words that nearly come": {"bad_words_token_ids": _nearly(run)},
        "logit_bias": {"logit_bias": [pb.LogitBias(token_id=token, bias=UNLIKELY) for token in never]},
        "penalties": {"presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0},
        **_told_beside(config),
    }
    if _is_default(0.0, config):
        found["no temperature"] = {"temperature": None}
    return {name: changes for name, changes in found.items() if _are_offered(changes, config)}


def neutral_of(under: Changes, config: pb.EngineConfig) -> dict[str, Changes]:
    """What changes nothing of a run under these options, by name."""
    biases = [pb.LogitBias(token_id=token, bias=0.0) for token in range(min(config.vocab_size, MANY))]
    found: dict[str, dict[str, Value]] = {
        "penalties": {"presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0},
        "logit_bias": {"logit_bias": biases},
        **_told_beside(config),
    }
    if "temperature" in under:
        found |= {name: {name: value} for name, value in _defaults(config).items()}
        if not found["top_k"]["top_k"]:
            found |= {f"top_k {count}": {"top_k": count} for count in (-1, config.vocab_size)}
    else:
        found["top_k 1"] = {"temperature": HOT, "top_k": 1}
    found = {name: changes for name, changes in found.items() if under.keys().isdisjoint(changes)}
    if _is_default(under.get("temperature", 0.0), config):
        found["no temperature"] = {"temperature": None}
    return {name: changes for name, changes in found.items() if _are_offered(changes, config)}


def _defaults(config: pb.EngineConfig) -> dict[str, Value]:
    """The filters that a request has which names none, as far as they may be named."""
    default = config.capabilities.default_sampling
    filters: dict[str, Value] = {"top_p": default.top_p or 1.0, "top_k": default.top_k}
    return filters | ({"min_p": default.min_p} if config.capabilities.min_p else {})


def _is_default(temperature: Value, config: pb.EngineConfig) -> bool:
    """True for the temperature of a request that names none."""
    can = config.capabilities
    return can.HasField("default_sampling") and can.default_sampling.temperature == temperature


def _told_beside(config: pb.EngineConfig) -> dict[str, dict[str, Value]]:
    """What is told beside any answer, and what is for the engine alone."""
    prompt = FIELD_RULES[path_of("prompt_logprobs")].most(config.limits)
    most = FIELD_RULES[path_of("logprobs")].most(config.limits)
    return {
        "logprobs": {"logprobs": min(2, most)},
        "prompt_logprobs": {"prompt_logprobs": min(1, prompt)},
        "priority": {"priority": -1},
        "annotations": {"annotations": [*config.capabilities.annotations[:ANSWERED], "nobody.knows:this"]},
        "bypass_prefix_cache": {"bypass_prefix_cache": True},
        # Each case says how many tokens it wants: a probe that does not has one.
        "a probe": {"is_probe": True},
    }


def _nearly(run: Greedy) -> list[pb.TokenSequence]:
    """Words of which the run has a part: across the end of the prompt, or in another order."""
    tokens = run.tokens
    near = [[*run.prompt[-length:], tokens[0]] for length in (1, 2)]
    near += [[later, earlier] for earlier, later in pairwise(tokens)]
    near += [[first, third] for first, third in zip(tokens, tokens[2:], strict=False)]
    near += [[*tokens[1:3], tokens[0]], [*tokens[:2], tokens[0]]]
    return [pb.TokenSequence(token_ids=word) for word in near if not _is_in(word, tokens)][:MANY]


def _is_in(word: Sequence[int], tokens: Sequence[int]) -> bool:
    ends = range(len(word), len(tokens) + 1)
    return any(list(tokens[end - len(word) : end]) == list(word) for end in ends)


def _are_offered(changes: Changes, config: pb.EngineConfig) -> bool:
    """As the rules of the fields have it: the capability is there, the limit holds, and something is said."""
    for name, value in changes.items():
        rule, size = FIELD_RULES[path_of(name)], len(value) if isinstance(value, list) else 1
        is_declared = not rule.capability or getattr(config.capabilities, rule.capability)
        if not (is_declared and 0 < size <= rule.most(config.limits)):
            return False
    return True


def drawn(seed: int, count: int, runs: Sequence[Greedy], offer: Offer, config: pb.EngineConfig) -> list[Mix]:
    """The first mixes of a seed; all of them are sent together."""
    return [_mix(seed, number, runs, offer, config) for number in range(count)]


def _mix(seed: int, number: int, runs: Sequence[Greedy], offer: Offer, config: pb.EngineConfig) -> Mix:
    rng = random.Random(f"{seed}/mix/{number}")
    case = replace(draw(seed, FIRST + number, runs, offer), together=True)
    beside = _some(rng, options_of(runs[case.prompt], config), case)
    return _left(rng, Mix(case=case, beside=beside, is_aborted=rng.random() < ABORTED))


def _left(rng: random.Random, mix: Mix) -> Mix:
    """Maybe cut: before the first token, or behind one of those that it would get."""
    if mix.is_aborted or rng.random() >= LEFT:
        return mix
    return replace(mix, cut=Cut(tokens=rng.randrange(mix.case.max_tokens), is_late=rng.random() < LATE))


def _some(rng: random.Random, offered: Mapping[str, Changes], case: Case) -> tuple[str, ...]:
    """Those that come along. An engine may refuse to tell of the prompt beside `resume`."""
    drawn = [name for name in offered if rng.random() < CHANCE]
    return tuple(name for name in drawn if name != "prompt_logprobs" or not case.resumed)


def of_runs(
    seed: int,
    count: int,
    runs: Sequence[Greedy],
    offer: Offer,
    under: Sequence[Changes],
    config: pb.EngineConfig,
    first: int = 0,
) -> list[Mix]:
    """Mixes of runs under other options. Where choices differ, most cases have several.

    `first`: the number of the first of these runs among all that there are.
    """
    neutral, found = [neutral_of(each, config) for each in under], []
    for number in range(count):
        rng = random.Random(f"{seed}/run/{number}")
        case = replace(draw(seed, OF_CASES + number, runs, offer), together=True)
        if runs[case.prompt].others and not case.resumed and rng.random() < SEVERAL:
            several = replace(case, n=rng.randint(2, max(2, offer.most_choices)))
            is_whole = is_possible(several, runs[case.prompt], offer.eos_token_ids)
            case = several if is_whole else replace(case, n=1)
        beside = _some(rng, neutral[case.prompt], case)
        case = replace(case, prompt=first + case.prompt)
        found.append(_left(rng, Mix(case=case, beside=beside, is_aborted=rng.random() < ABORTED)))
    return found


def smaller(mix: Mix) -> Iterator[Mix]:
    """Every mix that is one step simpler, the largest steps first."""
    if mix.is_aborted:
        yield replace(mix, is_aborted=False)
    if mix.cut:
        yield replace(mix, cut=None)
    if len(mix.beside) > 1:
        yield replace(mix, beside=())
    for name in mix.beside:
        yield replace(mix, beside=tuple(other for other in mix.beside if other != name))
    for case in smaller_case(mix.case):
        if case.together:
            yield replace(mix, case=case)
