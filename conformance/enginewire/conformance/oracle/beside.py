"""Asks for the mixes of a run once, while some are aborted, and judges what comes and what is left."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from enginewire import v1 as pb
from enginewire.conformance.oracle.ask import Answer, Target, answer_of, rows_in
from enginewire.conformance.oracle.findings import (
    EFFORTS,
    LATE,
    TOGETHER,
    Finding,
    in_time,
    mistakes_of,
    parts,
)
from enginewire.conformance.oracle.judge import Fault, judge
from enginewire.conformance.oracle.languages import LANGUAGES
from enginewire.conformance.oracle.mistakes import Mistaken
from enginewire.conformance.oracle.mixes import HOT, Mix, drawn, neutral_of, of_runs, options_of, smaller
from enginewire.conformance.oracle.predict import is_possible
from enginewire.conformance.oracle.runs import TOKENS, of_all_kinds
from enginewire.conformance.oracle.shrink import Patience, shrink
from enginewire.conformance.session.bounds import pause
from enginewire.conformance.session.context import Context, Greedy
from enginewire.conformance.session.saturation import MOST_SLOTS, saturated
from enginewire.conformance.session.sizes import slots_of
from enginewire.conformance.session.watching import until
from enginewire.conformance.wire.violation import NotApplicable, Violation, expect, expect_equal
from enginewire.field_rules import FIELD_RULES

SERVED: Final = "INF-09"
IDLE: Final = "CON-07"
FACTS: Final = "INF-03"
VALUES: Final = "LOG-11"
NAMES: Final = "ERR-12"

COUNTS: Final = "INF-13"

LEFT: Final = ("OK", "CANCELLED", "DEADLINE_EXCEEDED")
"""How a request may end that its caller has left, or somebody aborted."""

FREE: Final = 8
"""Slots that a full engine has left for mixes: half of a group waits for the other half."""

STEPS: Final = 60
MOST: Final = 3
"""Failures that are looked into."""

FAR: Final = 0.3
"""No rounding in low precision takes two computations of one log-probability that far apart."""


@dataclass(frozen=True, slots=True)
class Mixed:
    """What there is to compare with. `of_prompts`: the log-probabilities of the prompt of each run."""

    target: Target
    of_prompts: Sequence[Sequence[float]] = ()

    async def ask(self, mixes: Sequence[Mix]) -> list[Answer]:
        """All at the same time; some are aborted meanwhile."""
        ctx = self.target.ctx
        ids = [ctx.request().request_id for _ in mixes]
        beside = [{**self._changes(mix), "request_id": name} for mix, name in zip(mixes, ids, strict=True)]
        aborted = [name for mix, name in zip(mixes, ids, strict=True) if mix.is_aborted]
        answers, _ = await asyncio.gather(
            self.target.ask([mix.case for mix in mixes], beside, [mix.cut for mix in mixes]),
            self._meanwhile(aborted),
        )
        return answers

    def _changes(self, mix: Mix) -> dict[str, object]:
        config = self.target.ctx.config
        if under := self.target.under_of(mix.case):
            offered = neutral_of(under, config)
        else:
            offered = options_of(self.target.run_of(mix.case), config)
        return {field: value for name in mix.beside for field, value in offered.get(name, {}).items()}

    async def _meanwhile(self, aborted: Sequence[str]) -> None:
        client = self.target.client
        for name in aborted:
            await pause()
            await client.abort([name])
            await client.load()

    def fault(self, mix: Mix, answer: Answer) -> Fault | None:
        """The first fault of an answer."""
        run, offer = self.target.run_of(mix.case), self.target.offer
        if mix.cut or (mix.is_aborted and _is_cut(answer)):
            return next(self._faults_of_left(mix, answer, run), None)
        return judge(mix.case, answer, run, offer) or next(self._faults_of_values(mix, answer), None)

    def _faults_of_left(self, mix: Mix, answer: Answer, run: Greedy) -> Iterator[Fault]:
        """It ended as who left it wanted; what came before that stays valid."""
        is_late = mix.cut and mix.cut.is_late and answer.exchange.timed_out
        if not (is_late or answer.status.startswith(LEFT)):
            yield Fault("INF-09", "a valid request failed", " or ".join(LEFT), answer.status)
        for index, choice in answer.choices.items() if self.target.offer.is_exact else ():
            due = run.of(index)[mix.case.delivered(index) :]
            is_known = len(run.tokens) >= mix.case.min_tokens and not mix.case.min_tokens
            if is_known and choice.tokens != due[: len(choice.tokens)]:
                yield Fault("SAM-01", f"choice {index} has other tokens before its end", due, choice.tokens)

    def _faults_of_values(self, mix: Mix, answer: Answer) -> Iterator[Fault]:
        """Of the prompt; of tokens as long as they are those of the run, whatever others ask for."""
        yield from self._faults_of_prompt(mix, answer)
        run = self.target.run_of(mix.case)
        for index, choice in answer.choices.items():
            cut = mix.case.delivered(index)
            known = zip(run.of(index)[cut:], self.target.rows_of(mix.case, index)[cut:], strict=False)
            for (token, value, row), (same, due) in zip(rows_in(choice.outputs), known, strict=False):
                if token != same:
                    break  # what follows is about another text
                # Alternatives are far down where rounding counts more.
                told = row if self.target.offer.is_exact else {token: value}
                for other in told.keys() & due.keys():
                    if abs(told[other] - due[other]) > FAR:
                        message = f"token {other} has another log-probability in choice {index} of a mix"
                        yield Fault(VALUES, message, f"{due[other]:.4f}", f"{told[other]:.4f}")

    def _faults_of_prompt(self, mix: Mix, answer: Answer) -> Iterator[Fault]:
        known = self.of_prompts[mix.case.prompt] if self.of_prompts else ()
        for output in answer.outputs:
            rows = zip(output.prompt_logprobs.logprobs.token_logprobs, known, strict=False)
            for row, (value, expected) in enumerate(rows):
                if abs(value - expected) > FAR:
                    message = f"row {row} of prompt_logprobs is another one in a mix"
                    yield Fault(VALUES, message, f"{expected:.4f}", f"{value:.4f}")


async def mixed(ctx: Context) -> list[Finding]:
    """All there is wrong, made once per session."""
    return await ctx.session.once("mixed", lambda: _mixed(ctx))


async def _mixed(ctx: Context) -> list[Finding]:
    if not (wanted := ctx.session.options.cases):
        raise NotApplicable("--cases 0 draws none")
    client = ctx.session.client()
    target, num_plain = await of_all_kinds(ctx, client)
    everything = Mixed(target, await _values_of_prompts(target))
    seed = ctx.session.options.seed
    mixes = list(enumerate(_of_all_kinds(seed, wanted, target, num_plain)))
    found: list[Finding] = []
    failed: list[tuple[int, Mix, Fault, Answer]] = []
    judged, groups = 0, list(parts(mixes))
    for some in in_time(ctx, iter(groups)):
        # A slow engine is asked for less.
        is_fast = ctx.bounds.tokens_with_patience >= TOKENS
        before = await ctx.client.load()
        turn = some[0][0] // TOGETHER
        async with _full(ctx, is_fast and some is groups[-1]), _guided(target, turn) as guided:
            answers = await everything.ask([mix for _, mix in some])
        judged += sum(not answer.is_busy for answer in answers)
        for (number, mix), answer in zip(some, answers, strict=True):
            fault = everything.fault(mix, answer) if _is_told(mix, answer) else None
            failed += [(number, mix, fault, answer)] if fault else []
        found += [each async for each in _after(ctx, target, before, [*answers, *guided])]
        if found:
            break
    if judged < len(mixes) and not found:
        fewer = f"mixes: {judged} of {len(mixes)}, for want of time or room"
        ctx.session.drawn = "; ".join(filter(None, (ctx.session.drawn, fewer)))
    deadline = time.monotonic() + EFFORTS * ctx.bounds.effort
    plain = replace(target, runs=target.runs[:num_plain])
    for wrong in in_time(ctx, parts(mistakes_of(plain, seed))):
        answers = await target.ask([each.case for each in wrong], [each.changes for each in wrong])
        found += [one for each, answer in zip(wrong, answers, strict=True) for one in _misnamed(each, answer)]
    found += [each async for each in _after(ctx, target)]
    explained = [await _explained(everything, *each, deadline, seed) for each in failed[:MOST]]
    return [*found, *filter(None, explained)]


def _of_all_kinds(seed: int, wanted: int, target: Target, num_plain: int) -> list[Mix]:
    """Mixes of plain runs and of those under options in turns, so that each has all kinds beside it."""
    config, runs, under = target.ctx.config, target.runs, target.under[num_plain:]
    plain = drawn(seed, wanted, runs[:num_plain], target.offer, config)
    if not under:
        return plain
    others = of_runs(seed, wanted, runs[num_plain:], target.offer, under, config, num_plain)
    return [mix for pair in zip(plain, others, strict=True) for mix in pair]


@asynccontextmanager
async def _guided(target: Target, turn: int) -> AsyncIterator[list[Answer]]:
    """A request under a guide beside the mixes, each time another one: what comes of it the monitor sees.

    Yields where its answer will be.
    """
    found: list[Answer] = []
    ctx = target.ctx
    offered = [each for each in LANGUAGES if each.mode in ctx.capabilities.guided_modes]
    if not offered:
        yield found
        return
    hot = {"temperature": HOT} if turn % 2 else {}
    guide = offered[turn % len(offered)].guide
    request = ctx.request(max_tokens=ctx.tokens(TOKENS), guided_decoding=guide, **hot)
    reading = asyncio.ensure_future(ctx.start(request, client=target.client).end())
    try:
        yield found
    finally:
        found.append(answer_of(await reading))


@asynccontextmanager
async def _full(ctx: Context, is_due: bool) -> AsyncIterator[None]:
    """Long requests in all slots but a few, so that mixes meet a full engine; nothing where it is not due."""
    slots = slots_of(ctx.config) - FREE
    if is_due and 0 < slots <= MOST_SLOTS - FREE:
        async with saturated(ctx, slots) as running:
            if (await ctx.client.load()).waiting:
                # The slots are not all there is to run out of, and mixes would have to wait for these.
                for stream in running:
                    stream.cancel()
            yield
    else:
        yield


async def _values_of_prompts(target: Target) -> list[list[float]]:
    """The log-probabilities of the prompt of each run behind its first token; none where none are told."""
    most = FIELD_RULES["output_options.prompt_logprobs"].most(target.ctx.limits)
    if not (target.ctx.capabilities.prompt_logprobs and most):
        return []
    known: dict[tuple[int, ...], list[float]] = {}
    for prompt in (run.prompt for run in target.runs):
        if tuple(prompt) not in known:
            asked = {"token_ids": prompt, "max_tokens": 1, "prompt_logprobs": 0}
            stream = await target.ctx.start(target.ctx.request(**asked), client=target.client).ok()
            table = stream.choice.outputs[0].prompt_logprobs.logprobs
            known[tuple(prompt)] = list(table.token_logprobs)
    return [known[tuple(run.prompt)] for run in target.runs]


async def _after(
    ctx: Context, target: Target, before: pb.Load | None = None, answers: Sequence[Answer] = ()
) -> AsyncIterator[Finding]:
    """Nothing is held any more, all was counted, and the engine is who it was."""
    try:
        load = await ctx.idle()
        expect(not load.waiting_tokens, "prompt tokens wait, and no request does", seen=load.waiting_tokens)
    except Violation as violation:
        yield Finding(IDLE, violation, ctx.client.exchanges[-1])
        return
    try:
        await _counted(ctx, before or load, answers)
    except Violation as violation:
        yield Finding(COUNTS, violation, ctx.client.exchanges[-1])
    info = await target.client.info()
    try:
        expect_equal(info, ctx.info, "GetEngineInfo says something else after a mix of requests")
    except Violation as violation:
        yield Finding(FACTS, violation, target.client.exchanges[-1])


async def _counted(ctx: Context, before: pb.Load, answers: Sequence[Answer]) -> None:
    """At least the requests of which something came, however they ended, and their tokens; 0: nothing is."""
    tokens = sum(len(output.token_ids) for answer in answers for output in answer.outputs)
    came = {"requests_finished": sum(bool(answer.outputs) for answer in answers), "tokens_generated": tokens}
    for name, least in came.items():
        due = getattr(before, name) + least
        message = f"Load.{name} counts fewer than came of a mix of requests"
        await until(ctx, partial(_has, name, due), message, expected=f"at least {due}")


def _has(name: str, least: int, load: pb.Load) -> bool:
    return getattr(load, name) >= least or not getattr(load, name)


def _misnamed(mistake: Mistaken, answer: Answer) -> Iterator[Finding]:
    """The reason and the field are those of what is wrong, however much else is right."""
    detail = answer.detail
    if detail is None or answer.is_busy:
        return
    try:
        reasons = [pb.ErrorReason.Name(reason) for reason in mistake.reasons]
        seen = pb.ErrorReason.Name(detail.reason)
        message = f"a refusal of {mistake.wrong} has another reason"
        expect(seen in reasons, message, expected=" or ".join(reasons), seen=seen)
        named = (detail.field + ".").startswith((f"{mistake.wrong}.", f"{mistake.wrong}["))
        message = "a refusal names another field than the one that is wrong"
        expect(named, message, expected=mistake.wrong, seen=detail.field or "none")
    except Violation as violation:
        yield Finding(NAMES, violation, answer.exchange)


async def _explained(
    mixed: Mixed, number: int, mix: Mix, fault: Fault, answer: Answer, deadline: float, seed: int
) -> Finding | None:
    """In its smallest form, if it comes again alone; what came too late and comes in time alone is none."""

    async def fails(other: Mix) -> tuple[Fault, Answer] | None:
        [again] = await mixed.ask([other])
        found = mixed.fault(other, again)
        return (found, again) if found and found.rule == fault.rule else None

    def possible(other: Mix) -> bool:
        run = mixed.target.run_of(other.case)
        return is_possible(other.case, run, mixed.target.offer.eos_token_ids)

    small = await shrink(mix, smaller, possible, fails, Patience(STEPS, deadline))
    if not small.fault and fault.rule in LATE:
        return None
    fault, answer = small.fault or (fault, answer)
    again = "" if small.fault else f", only beside {TOGETHER - 1} others"
    options = " and ".join(sorted(mixed.target.under_of(small.case.case)))
    under = f", under {options}" if options else ""
    message = f"{fault.message} ({small.case.described}{under}; mix {number} of seed {seed}{again})"
    identifier = VALUES if fault.rule == VALUES else SERVED
    return Finding(identifier, Violation(message, expected=fault.expected, seen=fault.seen), answer.exchange)


def _is_told(mix: Mix, answer: Answer) -> bool:
    """What found no room says nothing, nor does an abort that came before its request."""
    return not answer.is_busy and not (mix.is_aborted and answer.status.startswith("CANCELLED"))


def _is_cut(answer: Answer) -> bool:
    return any(output.finish_reason == pb.FINISH_REASON_CANCELLED for output in answer.outputs)
