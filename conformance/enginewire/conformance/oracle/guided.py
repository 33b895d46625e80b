"""Guided answers beside drawn options: however they are asked for, their text is of the guide's language.

Nothing here computes a mask. A text is in the language or it is not; rows of log-probabilities are the
model's own, and show where a better token would have been allowed.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from enginewire import v1 as pb
from enginewire.conformance.oracle.ask import Answer, Target
from enginewire.conformance.oracle.beside import FAR
from enginewire.conformance.oracle.case import Case
from enginewire.conformance.oracle.draw import Offer
from enginewire.conformance.oracle.findings import EFFORTS, Finding, in_time, parts
from enginewire.conformance.oracle.judge import Fault
from enginewire.conformance.oracle.languages import LANGUAGES, Language
from enginewire.conformance.oracle.shrink import Patience, shrink
from enginewire.conformance.session.context import Context, Greedy
from enginewire.conformance.session.requests import PROMPT_TOKENS, Value
from enginewire.conformance.session.sizes import most_alternatives
from enginewire.conformance.session.views import detokenizer
from enginewire.conformance.session.views.detokenizer import Detokenizer
from enginewire.conformance.wire.stream import Choice
from enginewire.conformance.wire.violation import NotApplicable, Violation
from enginewire.field_rules import FIELD_RULES

GREEDY: Final = "SAM-01"
VALUES: Final = "LOG-11"

ROOM: Final = 64
"""More tokens than any text of the languages needs, white space aside."""
LEAST: Final = 24
"""A target that has no time for so many is not asked."""
SHARE: Final = 2
"""Of the cases that are drawn, one in so many is guided as well."""
TOP: Final = 8
HOT: Final = 1.2
SEED: Final = 7
SALTS: Final = 8000
STEPS: Final = 40

SAME: Final = 1e-4
"""Between two values of one row, as a part of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GuidedMix:
    """A case whose `prompt` is the number of a language, and what is beside it."""

    case: Case
    is_hot: bool = False
    has_seed: bool = False
    logprobs: bool = False

    @property
    def described(self) -> str:
        """In one line."""
        beside = {"hot": self.is_hot, "seed": self.has_seed, "logprobs": self.logprobs}
        return ", ".join([self.case.described, *(name for name, there in beside.items() if there)])

    def changes(self, language: Language, top: int, allowed: Sequence[int]) -> dict[str, Value]:
        """What it asks for beside its case. `allowed`: ids that a free language always allows."""
        changes: dict[str, Value] = {"guided_decoding": language.guide}
        if self.is_hot:
            changes["temperature"] = HOT
        if self.has_seed:
            changes["seed"] = SEED
        if self.logprobs:
            changes["logprobs"] = top
        if self.logprobs and language.characters and allowed:
            changes["logprob_token_ids"] = allowed
        return changes


@dataclass(frozen=True, slots=True)
class Guided:
    """What there is to compare with. `first`: the values of the first row without a guide, or nothing.

    `allowed`: ids whose values are asked for in free languages, where they can be.
    """

    target: Target
    languages: Sequence[Language]
    table: Detokenizer
    first: Mapping[int, float]
    top: int
    allowed: Sequence[int]

    async def ask(self, mixes: Sequence[GuidedMix]) -> list[Answer]:
        """All at the same time."""
        beside = [mix.changes(self.languages[mix.case.prompt], self.top, self.allowed) for mix in mixes]
        return await self.target.ask([mix.case for mix in mixes], beside)

    def fault(self, mix: GuidedMix, answer: Answer) -> Fault | None:
        """The first fault of an answer."""
        return next(self._faults(mix, answer), None)

    def _faults(self, mix: GuidedMix, answer: Answer) -> Iterator[Fault]:
        language, run = self.languages[mix.case.prompt], self.target.run_of(mix.case)
        if answer.status != "OK":
            yield Fault(language.id, "a valid guided request failed", "OK", answer.status)
            return
        for index in range(mix.case.n):
            choice = answer.choices.get(index, Choice(index))
            handed = run.tokens[: mix.case.delivered(index)]
            yield from self._of_text(language, choice, handed)
            if not handed:
                yield from self._of_values(choice)
            if language.characters and not mix.is_hot:
                yield from self._of_better_tokens(language, choice, handed)
            if self.target.offer.is_exact and not mix.is_hot:
                due, seen = run.tokens[: mix.case.max_tokens], [*handed, *choice.tokens]
                if seen != due:
                    yield Fault(GREEDY, f"choice {index} has other tokens in a mix", due, seen)

    def _of_text(self, language: Language, choice: Choice, handed: list[int]) -> Iterator[Fault]:
        text = self.table.text([*handed, *choice.tokens])
        is_cut = choice.finish_reason == pb.FINISH_REASON_LENGTH
        if not (language.may_become(text) if is_cut else language.matches(text)):
            what = "can become no" if is_cut else "is no"
            message = f"the text of choice {choice.index} {what} match of its guide"
            yield Fault(language.id, message, language.described, text)

    def _of_values(self, choice: Choice) -> Iterator[Fault]:
        """The first row is that of the same prompt without a guide."""
        for table in (output.logprobs for output in choice.outputs[:1]):
            rows = zip(table.top_token_ids[: table.top_n], table.top_logprobs, strict=False)
            for token, value in rows if self.first else ():
                # What is not among the best of the other row is no better than the least of them.
                due = self.first.get(token, min(min(self.first.values()), value))
                if abs(value - due) > FAR:
                    message = f"token {token} has another log-probability under a guide"
                    yield Fault(VALUES, message, f"{due:.4f}", f"{value:.4f}")

    def _of_better_tokens(self, language: Language, choice: Choice, handed: list[int]) -> Iterator[Fault]:
        """A more probable token that the guide allows would have been the greedy one."""
        before = list(handed)
        for output in choice.outputs:
            table = output.logprobs
            for number, token in enumerate(output.token_ids[: len(table.token_logprobs)]):
                value, text = table.token_logprobs[number], self.table.text(before)
                for other, better in _others(table, number, self.allowed):
                    more = self.table.text([other])
                    is_better = better > value + SAME * max(1.0, abs(value))
                    if is_better and more and language.may_become(text + more):
                        message = f"choice {choice.index} has a token although a better one is allowed"
                        yield Fault(GREEDY, message, f"{other} {more!r}", f"{token}")
                before.append(token)


def _others(table: pb.Logprobs, number: int, selected: Sequence[int]) -> Iterator[tuple[int, float]]:
    """The alternatives of a row, and the ids that were asked for by themselves, if any were."""
    top = slice(number * table.top_n, (number + 1) * table.top_n)
    yield from zip(table.top_token_ids[top], table.top_logprobs[top], strict=False)
    chosen = slice(number * len(selected), (number + 1) * len(selected))
    yield from zip(selected, table.selected_logprobs[chosen], strict=False)


async def guided(ctx: Context) -> list[Finding]:
    """All there is wrong, made once per session."""
    return await ctx.session.once("guided", lambda: _guided(ctx))


async def _guided(ctx: Context) -> list[Finding]:
    if not (wanted := ctx.session.options.cases):
        raise NotApplicable("--cases 0 draws none")
    everything, seed = await _everything(ctx), ctx.session.options.seed
    mixes = list(enumerate(drawn(seed, -(-wanted // SHARE), everything.target.runs, ctx.config)))
    failed: dict[str, tuple[int, GuidedMix, Fault, Answer]] = {}
    for some in in_time(ctx, parts(mixes)):
        answers = await everything.ask([mix for _, mix in some])
        for (number, mix), answer in zip(some, answers, strict=True):
            fault = None if answer.is_busy else everything.fault(mix, answer)
            if fault:
                failed.setdefault(fault.rule, (number, mix, fault, answer))
    deadline = time.monotonic() + EFFORTS * ctx.bounds.effort
    found = [await _explained(everything, *each, deadline, seed) for each in failed.values()]
    return list(filter(None, found))


async def _everything(ctx: Context) -> Guided:
    """The greedy run of each guide, and the first row without one."""
    if not ctx.capabilities.tokenizer:
        raise NotApplicable("Capabilities.tokenizer is not advertised")
    client = ctx.session.client()
    table = await ctx.session.once("tokenizer", lambda: detokenizer.fetch(ctx.session.client()))
    prompt, room = ctx.prompt(salt=SALTS), ctx.tokens(ROOM, PROMPT_TOKENS, least=LEAST)
    languages, runs = [], []
    for language in LANGUAGES:
        if language.mode in ctx.capabilities.guided_modes:
            asked: dict[str, Value] = {"guided_decoding": language.guide, "max_tokens": room}
            stream = await ctx.start(ctx.request(token_ids=prompt, **asked), client=client).ok()
            if stream.choice.finish_reason != pb.FINISH_REASON_LENGTH:
                languages.append(language)
                runs.append(Greedy(prompt, stream.tokens))
    if not runs:
        raise NotApplicable("no guide is advertised whose language the kit knows, or none ends in time")
    top, first = min(most_alternatives(ctx.config), TOP), {}
    if ctx.capabilities.logprobs and top:
        plain = ctx.request(token_ids=prompt, max_tokens=1, logprobs=top)
        row = (await ctx.start(plain, client=client).ok()).outputs[0].logprobs
        first = dict(zip(row.top_token_ids, row.top_logprobs, strict=False))
    target = Target(ctx, client, runs, Offer.of(ctx.config))
    return Guided(target, languages, table, first, top, _allowed(ctx, languages, table))


def _allowed(ctx: Context, languages: Sequence[Language], table: Detokenizer) -> list[int]:
    """One token for each character of a free language, as many as may be asked for by themselves."""
    if not ctx.capabilities.selected_logprobs:
        return []
    characters = {character for language in languages for character in language.characters}
    found = {table.text([token]): token for token in table.table}
    most = FIELD_RULES["output_options.logprob_token_ids"].most(ctx.limits)
    return [found[character] for character in sorted(characters & set(found))][:most]


def drawn(seed: int, count: int, runs: Sequence[Greedy], config: pb.EngineConfig) -> list[GuidedMix]:
    """The first of a seed; each run is the whole greedy answer under one guide."""
    return [_mix(random.Random(f"{seed}/guided/{number}"), runs, config) for number in range(count)]


def _mix(rng: random.Random, runs: Sequence[Greedy], config: pb.EngineConfig) -> GuidedMix:
    can, offer, prompt = config.capabilities, Offer.of(config), rng.randrange(len(runs))
    whole = len(runs[prompt].tokens)
    longest = rng.randint(1, whole) if rng.random() < 0.3 else ROOM
    inner = min(whole - 1, longest) - 1
    n = 2 if rng.random() < 0.4 and offer.most_choices > 1 else 1
    cuts = [rng.randint(1, inner) for _ in range(n)] if inner > 0 and rng.random() < 0.4 else []
    case = Case(
        prompt=prompt,
        max_tokens=longest,
        n=n,
        resumed=tuple(cuts[: rng.randint(1, n)]) if offer.resume else (),
        stream_interval=rng.choice((0, 0, 1, 4)),
        multiplexed=rng.random() < 0.35 and offer.multiplexed,
        is_first=rng.random() < 0.3,
        together=True,
    )
    return GuidedMix(
        case=case,
        is_hot=rng.random() < 0.3,
        has_seed=rng.random() < 0.3 and can.seed,
        logprobs=rng.random() < 0.8 and can.logprobs,
    )


def smaller(mix: GuidedMix) -> Iterator[GuidedMix]:
    """Every one that is one step simpler."""
    for name in ("is_hot", "has_seed", "logprobs"):
        if getattr(mix, name):
            yield replace(mix, **{name: False})  # type: ignore[arg-type]  # the names of flags
    simpler: dict[str, object] = {
        "multiplexed": False,
        "is_first": False,
        "resumed": (),
        "stream_interval": 0,
    }
    for name, usual in simpler.items():
        if getattr(mix.case, name) != usual:
            yield replace(mix, case=mix.case.changed(name, usual))
    if mix.case.n > 1:
        yield replace(mix, case=replace(mix.case, n=1, resumed=mix.case.resumed[:1]))
    if mix.case.max_tokens < ROOM:
        yield replace(mix, case=replace(mix.case, max_tokens=ROOM))


async def _explained(
    everything: Guided,
    number: int,
    mix: GuidedMix,
    fault: Fault,
    answer: Answer,
    deadline: float,
    seed: int,
) -> Finding | None:
    """In its smallest form; a request that failed once and not again is none."""

    async def fails(other: GuidedMix) -> tuple[Fault, Answer] | None:
        [again] = await everything.ask([other])
        found = everything.fault(other, again)
        return (found, again) if found and found.rule == fault.rule else None

    small = await shrink(mix, smaller, lambda other: True, fails, Patience(STEPS, deadline))
    if not small.fault and answer.status != "OK":
        return None
    fault, answer = small.fault or (fault, answer)
    again = "" if small.fault else ", only beside others"
    message = f"{fault.message} ({small.case.described}; guided case {number} of seed {seed}{again})"
    return Finding(fault.rule, Violation(message, expected=fault.expected, seen=fault.seen), answer.exchange)
