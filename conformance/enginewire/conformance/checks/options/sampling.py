"""SAM: greedy decoding, sampling and what changes it.

Runs that have to be the same are made alone, one after the other: an engine may round differently in
another batch.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

from enginewire import v1 as pb
from enginewire.conformance.oracle.repetition import counts
from enginewire.conformance.running.registry import SHAPE, check
from enginewire.conformance.session.context import Context
from enginewire.conformance.session.requests import Value
from enginewire.conformance.wire.stream import Stream
from enginewire.conformance.wire.violation import NotApplicable, Violation, expect, expect_equal

LONG: Final = 32
SHORT: Final = 16
REPEATING: Final = 48
SEEDS: Final = 4
HIGH_BITS: Final = (32, 63)
FEW_TOKENS: Final = 8
PROMPTS: Final = 4
FEW_PROMPTS: Final = 3
MANY_PROMPTS: Final = 12
LONG_PROMPT: Final = 64
LONGEST_PROMPT: Final = 600
TOGETHER: Final = 8
DRAWS: Final = 24
KEPT: Final = 3
HOT: Final = 100.0
FAVOUR: Final = 60.0
"""A bias that makes a token twice as probable at the hottest temperature."""
TOSSES: Final = 48
"""Tokens among which one of three is missing by chance once in a hundred million times."""
WARM: Final = 2.0
MOST_NEIGHBOURS: Final = 3
FULL: Final = 15

ROUNDING: Final = 1e-4
"""Between two values of one table that stand for the same probability."""

PENALTIES: Final = ("presence_penalty", "frequency_penalty", "repetition_penalty")
NEUTRAL: Final[dict[str, Value]] = {"presence_penalty": 0, "frequency_penalty": 0, "repetition_penalty": 1}
STRONG: Final = 2.0


@check("SAM-01", needs=SHAPE, alone=True)
async def greedy_is_repeated(ctx: Context) -> None:
    """Three times the same; that each token is a most probable one is for LOG-05 and SAM-06."""
    first, *others = [await ctx.generate(ctx.request(max_tokens=ctx.tokens(LONG))) for _ in range(3)]
    for other in others:
        expect_equal(other.tokens, first.tokens, "temperature 0 gives other tokens the next time")


@check("SAM-02", needs=SHAPE, alone=True)
async def seeds_are_repeated(ctx: Context) -> None:
    """A few seeds, small ones and the largest."""
    for seed in (0, 2**64 - 1, 1)[: ctx.times(3, 2 * ctx.tokens(SHORT))]:
        first, again = [await _sampled(ctx, seed=seed) for _ in range(2)]
        expect_equal(again, first, f"seed {seed} gives other tokens the next time")


@check("SAM-03", needs=(*SHAPE, "SAM-02"), alone=True)
async def seeds_differ(ctx: Context) -> None:
    """At least two of those that differ in low bits, also below a high one, and from those without it."""
    without = await asyncio.gather(*(_sampled(ctx, seed=seed) for seed in range(SEEDS)))
    _some_differ(without, f"{SEEDS} small seeds give the same tokens")
    for bit in HIGH_BITS:
        outputs = await asyncio.gather(*(_sampled(ctx, seed=seed + 2**bit) for seed in range(SEEDS)))
        _some_differ(outputs, f"{SEEDS} seeds with bit {bit} give the same tokens")
        expect(outputs != without, f"seeds that differ in bit {bit} alone give the same tokens")


def _some_differ(outputs: Sequence[list[int]], message: str) -> None:
    expect(any(output != outputs[0] for output in outputs), message, expected="some that differ")


@check("SAM-04", needs=(*SHAPE, "SAM-02", "CON-01"), alone=True)
async def the_first_token_is_its_own(ctx: Context) -> None:
    """Alone, then beside seeded and unseeded neighbours."""
    alone, beside = await _alone_and_beside(ctx)
    first = [[tokens[:1] for tokens in outputs] for outputs in (alone, beside)]
    expect_equal(first[1], first[0], "the first token of a seed depends on what else is in the batch")


@check(
    "SAM-04",
    variant="batch-invariant",
    gate="batch_invariant",
    needs=(*SHAPE, "SAM-02", "CON-01"),
    alone=True,
)
async def all_tokens_are_their_own(ctx: Context) -> None:
    """The whole output."""
    alone, beside = await _alone_and_beside(ctx)
    expect_equal(beside, alone, "tokens of a seed depend on what else is in the batch")


# A second choice of each neighbour would take the slots that are left.
@check(
    "SAM-04",
    variant="full-batch",
    needs=(*SHAPE, "CON-01", "SAM-04", "SEQ-04/seeded"),
    alone=True,
    not_beside=("n",),
)
async def first_tokens_are_their_own_in_a_full_batch(ctx: Context) -> None:
    """Those of some choices each, alone and all at once beside neighbours in the other slots.

    One prompt takes several steps: how many, depends on what else there is to compute.
    """
    slots = _slots(ctx)
    prompts = [
        ctx.prompt(min(LONGEST_PROMPT, ctx.longest_prompt()), salt=ctx.fresh_salt()),
        *(SEEDS - 1) * [ctx.prompt()],
    ]
    count = ctx.choices(min(MOST_NEIGHBOURS, slots - 1))
    several: dict[str, Value] = {"n": count} if count > 1 else {}

    def seeded(seed: int) -> pb.GenerateRequest:
        return ctx.request(token_ids=prompts[seed], max_tokens=1, temperature=1.5, seed=seed, **several)

    def firsts(stream: Stream) -> dict[int, list[int]]:
        return {index: choice.tokens for index, choice in stream.choices.items()}

    alone = [firsts(await ctx.generate(seeded(seed))) for seed in range(SEEDS)]
    async with _neighbours(ctx, min(slots - count, FULL)):
        beside = [firsts(stream) for stream in await _together(ctx, [*map(seeded, range(SEEDS))])]
    expect_equal(beside, alone, "the first token of a choice depends on what else is in a full batch")


@check("SAM-05", needs=(*SHAPE, "SAM-01", "CON-01"), alone=True)
async def greedy_is_its_own(ctx: Context) -> None:
    """A few prompts alone and beside others; rounding may turn one of them."""
    length = min(LONG_PROMPT, ctx.longest_prompt(SHORT))
    count = ctx.tokens(SHORT, length)
    requests = [
        {"token_ids": ctx.prompt(length, salt=100 + salt), "max_tokens": count}
        for salt in range(ctx.times(PROMPTS, 2 * count, least=2))
    ]
    alone = [(await ctx.generate(ctx.request(**request))).tokens for request in requests]
    async with _neighbours(ctx):
        beside = [(await ctx.generate(ctx.request(**request))).tokens for request in requests]
    turned = sum(one != other for one, other in zip(alone, beside, strict=True))
    allowed = 0 if ctx.capabilities.batch_invariant else 1
    message = "greedy outputs depend on what else is in the batch"
    expect(turned <= allowed, message, expected=f"at most {allowed} of {len(alone)}", seen=turned)


@check("SAM-06", needs=(*SHAPE, "INF-05", "LIM-01"))
async def one_candidate_is_greedy(ctx: Context) -> None:
    """Hot, so that whoever ignores the filter is seen; a few tries for engines that round."""
    greedy = await ctx.greedy()
    for change in ({"top_k": 1}, {"top_p": 1e-6}):
        for _ in range(3):
            request = ctx.request(
                token_ids=greedy.prompt, max_tokens=len(greedy.tokens), temperature=WARM, **change
            )
            seen = (await ctx.generate(request)).tokens
            if seen == greedy.tokens:
                break
        else:
            raise Violation(f"{change} does not give the greedy tokens", expected=greedy.tokens, seen=seen)


@check("SAM-16", variant="no-filter", needs=(*SHAPE, "SAM-06"))
async def what_filters_nothing_is_hot(ctx: Context) -> None:
    """Each value for all tokens, unseeded, at a temperature where greedy tokens are one draw of many."""
    greedy = await ctx.greedy(SHORT)
    hot = {"token_ids": greedy.prompt, "max_tokens": len(greedy.tokens), "temperature": HOT}
    changes: tuple[dict[str, Value], ...] = ({}, {"top_k": -1}, {"top_k": 0}, {"top_p": 1.0})
    # At the same time: whoever takes the time for a seed gives them the same tokens.
    answers = [
        stream.tokens for stream in await _together(ctx, [ctx.request(**hot, **each) for each in changes])
    ]
    if answers[0] == greedy.tokens:
        raise NotApplicable("this model is sure of its tokens at any temperature")
    for change, answer in zip(changes, answers, strict=True):
        message = f"{change}, which is no filter, gives the greedy tokens"
        expect(answer != greedy.tokens, message, seen=answer)
    differ = len(greedy.tokens) < SHORT or any(answer != answers[0] for answer in answers)
    expect(differ, "requests without a seed get the same tokens each time", seen=answers[0])


@check("SAM-16", variant="hottest", gate="logit_bias", needs=(*SHAPE, "SAM-09", "SAM-16/no-filter"))
async def the_hottest_is_no_colder(ctx: Context) -> None:
    """Of two tokens, with a bias for one that leaves the other hardly anything at a usual temperature.

    Each has the bias once: for one of them the model does not add to it.
    """
    if not ctx.capabilities.allowed_token_ids:
        raise NotApplicable("without allowed_token_ids all the others come at such a temperature")
    pair, tokens = ctx.prompt(2), list[int]()
    for favoured in pair:
        bias = [pb.LogitBias(token_id=favoured, bias=FAVOUR)]
        asked: dict[str, Value] = {"max_tokens": ctx.tokens(TOSSES, least=TOSSES), "temperature": HOT}
        stream = await ctx.generate(ctx.request(**asked, allowed_token_ids=pair, logit_bias=bias))
        tokens += [token for token in stream.choice.tokens if token != favoured]
    message = f"at temperature {HOT:g} no token comes but the one with a bias of {FAVOUR:g}"
    expect(tokens, message, expected="about a third of the others", seen="none")


@check("SAM-07", needs=(*SHAPE, "SAM-06", "LOG-02", "LOG-04"))
async def few_candidates_are_few(ctx: Context) -> None:
    """By the log-probabilities of each position, or by counting different first tokens."""
    most = ctx.limits.max_logprobs if ctx.limits.HasField("max_logprobs") else KEPT
    await (_by_logprobs if ctx.capabilities.logprobs and most >= KEPT else _by_counting)(ctx)


@check("SAM-08", needs=(*SHAPE, "SAM-01"), alone=True)
async def penalties_work(ctx: Context) -> None:
    """On outputs that repeat a token; neutral ones change nothing."""
    plain = {salt: await _greedy(ctx, salt) for salt in range(FEW_PROMPTS)}
    neutral = [await _greedy(ctx, salt, **NEUTRAL) for salt in plain]
    expect_equal(neutral, list(plain.values()), "neutral penalties change the output")
    if all(len(set(tokens)) == len(tokens) for tokens in plain.values()):
        raise NotApplicable("no output of this model repeats a token")
    for name in PENALTIES:
        message = f"a {name} of {STRONG:g} changes nothing"
        expect(await _changes_one(ctx, plain, **{name: STRONG}), message, expected="other tokens")


async def _changes_one(ctx: Context, plain: dict[int, list[int]], **penalty: float) -> bool:
    """One of many prompts is enough: a model may be surer of what it repeats than a penalty is strong."""
    for salt in range(MANY_PROMPTS):
        tokens = plain[salt] = plain.get(salt) or await _greedy(ctx, salt)
        if len(set(tokens)) < len(tokens) and await _greedy(ctx, salt, **penalty) != tokens:
            return True
    return False


@check("SAM-09", needs=SHAPE)
async def biases_forbid_and_force(ctx: Context) -> None:
    """The greedy token, and one that does not come."""
    greedy = await ctx.greedy()
    first, other = greedy.tokens[0], next(token for token in greedy.prompt if token != greedy.tokens[0])
    forbidden = [pb.LogitBias(token_id=first, bias=-100.0)]
    tokens = (await ctx.generate(ctx.request(token_ids=greedy.prompt, logit_bias=forbidden))).tokens
    expect(
        first not in tokens, "a token with a bias of -100 was generated", expected=f"no {first}", seen=tokens
    )
    forced = [pb.LogitBias(token_id=other, bias=100.0)]
    tokens = (await ctx.generate(ctx.request(temperature=None, logit_bias=forced))).tokens
    expect_equal(set(tokens), {other}, "a token with a bias of 100 is not forced")


@check("SAM-09", variant="repeating", needs=(*SHAPE, "SEQ-02", "SAM-09"), alone=True)
async def biases_force_to_the_end(ctx: Context) -> None:
    """A token that the prompt has had again and again: an engine that drafts foretells it."""
    token = ctx.prompt()[0]
    change = {"token_ids": SHORT * [token], "max_tokens": ctx.tokens(LONG, SHORT), "temperature": None}
    forced = [pb.LogitBias(token_id=token, bias=100.0)]
    for count in counts(ctx):
        stream = await ctx.generate(ctx.request(**change, n=count, logit_bias=forced))
        for choice in stream.choices.values():
            expect_equal(set(choice.tokens), {token}, "a token with a bias of 100 is not forced to the end")


async def _sampled(ctx: Context, **changes: Value) -> list[int]:
    request = ctx.request(**{"max_tokens": ctx.tokens(SHORT), "temperature": 1.0, **changes})
    return (await ctx.generate(request)).tokens


async def _greedy(ctx: Context, salt: int, **changes: Value) -> list[int]:
    request = ctx.request(token_ids=ctx.prompt(salt=salt), max_tokens=ctx.tokens(REPEATING), **changes)
    return (await ctx.generate(request)).tokens


async def _by_logprobs(ctx: Context) -> None:
    """A token as probable as the last candidate is one, too."""
    change = {"max_tokens": ctx.tokens(2 * LONG), "temperature": HOT, "top_k": KEPT, "logprobs": KEPT}
    for output in (await ctx.generate(ctx.request(**change))).outputs:
        table = output.logprobs
        for row, value in enumerate(table.token_logprobs):
            last = table.top_logprobs[(row + 1) * table.top_n - 1]
            message = f"a token is not among the {KEPT} most probable ones"
            expect(value >= last - ROUNDING, message, expected=f"at least {last:.4f}", seen=f"{value:.4f}")


async def _by_counting(ctx: Context) -> None:
    """Many first tokens at the highest temperature; ties in one prompt may let more pass."""
    counts = []
    for salt in range(2):
        change = {"token_ids": ctx.prompt(salt=salt), "max_tokens": 1, "temperature": HOT, "top_k": KEPT}
        seeds = [{"seed": seed} if ctx.capabilities.seed else {} for seed in range(DRAWS)]
        streams = await _together(ctx, [ctx.request(**change, **seed) for seed in seeds])
        counts.append(len({tuple(stream.tokens) for stream in streams}))
    message = f"top_k {KEPT} lets more tokens pass"
    expect(min(counts) <= KEPT, message, expected=f"at most {KEPT} different ones", seen=min(counts))


async def _together(ctx: Context, requests: list[pb.GenerateRequest]) -> list[Stream]:
    """Some at a time, so that no queue gets full."""
    slots = asyncio.Semaphore(TOGETHER)

    async def one(request: pb.GenerateRequest) -> Stream:
        async with slots:
            return await ctx.generate(request)

    return list(await asyncio.gather(*map(one, requests)))


async def _alone_and_beside(ctx: Context) -> tuple[list[list[int]], list[list[int]]]:
    """Outputs of some seeds without and with neighbours, made once for all who look at them."""
    count = ctx.tokens(FEW_TOKENS)
    seeds = range(ctx.times(SEEDS, 2 * count, least=2))

    async def observe() -> tuple[list[list[int]], list[list[int]]]:
        alone = [await _sampled(ctx, seed=seed, max_tokens=count) for seed in seeds]
        async with _neighbours(ctx):
            beside = (_sampled(ctx, seed=seed, max_tokens=count) for seed in seeds)
            return alone, await asyncio.gather(*beside)

    return await ctx.once("alone and beside", observe)


def _slots(ctx: Context) -> int:
    """How many sequences run at a time, as far as that is known."""
    slots = ctx.config.max_num_seqs if ctx.config.HasField("max_num_seqs") else MOST_NEIGHBOURS + 1
    if slots == 1:
        raise NotApplicable("there is one slot, so nothing runs beside a request")
    return slots


@asynccontextmanager
async def _neighbours(ctx: Context, most: int = MOST_NEIGHBOURS) -> AsyncIterator[None]:
    """Long requests in all slots but one, at a temperature, seeded where that works."""
    streams = []
    for number in range(min(_slots(ctx) - 1, most)):
        change: dict[str, Value] = {"token_ids": ctx.prompt(salt=200 + number), "temperature": 1.0}
        if number % 2 and ctx.capabilities.seed:
            change["seed"] = secrets.randbits(32)
        streams.append(ctx.start(ctx.long_request(**change)))
    try:
        await asyncio.gather(*(stream.first_token() for stream in streams))
        yield
    finally:
        for stream in streams:
            stream.cancel()
