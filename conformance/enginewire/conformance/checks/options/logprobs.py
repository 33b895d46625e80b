"""LOG: tables of log-probabilities.

Two answers are read by all checks of this area: a greedy one with alternatives, and a sampled one with
the chosen tokens alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from enginewire import v1 as pb
from enginewire.conformance.checks.options.distributions.rows import Row, rows_of
from enginewire.conformance.checks.streams.shapes import CHOICES, MULTIPLEXED, PLAIN, Shape, ask, check_in
from enginewire.conformance.oracle.beside import FAR
from enginewire.conformance.oracle.repetition import counts, only, repetition
from enginewire.conformance.running.registry import SHAPE, check
from enginewire.conformance.session.context import Context
from enginewire.conformance.session.requests import Value
from enginewire.conformance.session.sizes import most_alternatives
from enginewire.conformance.wire.stream import Stream
from enginewire.conformance.wire.violation import NotApplicable, expect, expect_equal

NEEDS: Final = (*SHAPE, "STR-08")

TOKENS: Final = 16
MANY: Final = 600
"""More than tables that are made in parts have in one."""
ALTERNATIVES: Final = 4
LONG: Final = 600
"""Tokens of a prompt, which an engine may compute in parts."""
PROMPT: Final = 12
FORETOLD: Final = 12
HOT: Final = 5.0

IMPOSSIBLE: Final = -1e30
ABOVE_ZERO: Final = 1e-3
"""By which rounding may lift a logarithm above 0, or a sum of probabilities above 1."""

SAME: Final = 1e-4
"""Between two values of one table that stand for the same probability."""


@check("LOG-01", needs=NEEDS)
async def a_row_per_token(ctx: Context) -> None:
    """In the same message."""
    for stream in (await _greedy(ctx), await _sampled(ctx)):
        for output in stream.outputs:
            seen, expected = len(output.logprobs.token_logprobs), len(output.token_ids)
            expect_equal(seen, expected, "an output has not one row of log-probabilities per token")


@check("LOG-02", needs=(*NEEDS, "LOG-01", "LOG-03", "LOG-04"))
async def the_value_is_the_tokens(ctx: Context) -> None:
    """The same as among the alternatives."""
    for row in rows_of((await _greedy(ctx)).outputs):
        if row.token in row.ids:
            among = row.values[row.ids.index(row.token)]
            same = math.isclose(row.value, among, abs_tol=SAME, rel_tol=SAME)
            message = f"token {row.token} has another value among the alternatives of its row"
            expect(same, message, expected=f"{among:.6f}", seen=f"{row.value:.6f}")


@check("LOG-02", variant="selected", gate="selected_logprobs", needs=(*NEEDS, "LOG-01", "LOG-03"))
async def the_value_is_the_selected_one(ctx: Context) -> None:
    """The first greedy token, asked for twice by its id, behind another one; with `logprobs` and without."""
    greedy = await ctx.greedy()
    first, other = greedy.tokens[0], next(token for token in greedy.prompt if token != greedy.tokens[0])
    selected: dict[str, Value] = {"token_ids": greedy.prompt, "logprob_token_ids": [other, first, first]}
    for asked in (selected | {"logprobs": 0}, selected):
        table = (await ctx.generate(ctx.request(**asked))).outputs[0].logprobs
        expect(table.token_logprobs, "the first output has no log-probabilities", expected="a row per token")
        columns = 3 * len(table.token_logprobs)
        expect_equal(len(table.selected_logprobs), columns, "not one value per id of logprob_token_ids")
        value, message = table.token_logprobs[0], "a selected id has another value as the token"
        for seen in table.selected_logprobs[1:3]:
            same = math.isclose(seen, value, abs_tol=SAME, rel_tol=SAME)
            expect(same, message, expected=f"{value:.6f}", seen=f"{seen:.6f}")


@check(
    "LOG-02",
    variant="repeating",
    needs=(*NEEDS, "USE-04", "LIM-03", "SEQ-02", "LOG-01", "LOG-02", "LOG-03", "LOG-11"),
    alone=True,
)
async def the_value_is_that_of_its_place(ctx: Context) -> None:
    """The same where a draft foretells a token as where it comes alone."""
    found = await repetition(ctx)
    prompt, most = found.greedy.prompt, len(found.greedy.tokens)
    told = list[list[Row]]()
    for count in counts(ctx):
        stream = await ctx.generate(_told(ctx, prompt, max_tokens=most, n=count, **found.under))
        told += [list(rows_of(choice.outputs)) for choice in stream.choices.values()]
    tokens = [row.token for row in told[0]]
    for place, token in enumerate(tokens[: ctx.times(FORETOLD)]):
        before = [*prompt, *tokens[:place]]
        alone = await ctx.generate(_told(ctx, before, max_tokens=1, **only(ctx, token)))
        own = next(rows_of(alone.choice.outputs))
        for rows in told:
            if [row.token for row in rows[: place + 1]] == [*tokens[:place], own.token]:
                message = f"token {place} has another log-probability than without the tokens of its step"
                close = abs(rows[place].value - own.value) <= FAR
                expect(close, message, expected=f"{own.value:.4f}", seen=f"{rows[place].value:.4f}")


def _told(ctx: Context, prompt: list[int], **changes: Value) -> pb.GenerateRequest:
    return ctx.request(token_ids=prompt, logprobs=0, **changes)


@check("LOG-03", needs=(*NEEDS, "LOG-01"))
async def values_are_logarithms(ctx: Context) -> None:
    """Every value of every table."""
    for stream in (await _greedy(ctx), await _sampled(ctx)):
        for output in stream.outputs:
            _are_logarithms(output.logprobs)


@check("LOG-04", needs=(*NEEDS, "LOG-01", "LOG-03"))
async def alternatives_are_a_ranking(ctx: Context) -> None:
    """As many as the table says, each once, best first; none where none were asked for."""
    for stream, asked in ((await _greedy(ctx), await _asked(ctx)), (await _sampled(ctx), 0)):
        for output in stream.outputs:
            _has_columns(output, asked)
        for row in rows_of(stream.outputs):
            expect_equal(len(set(row.ids)), len(row.ids), "an alternative is listed twice in a row")
            falling = all(first >= second - SAME for first, second in pairwise(row.values))
            expect(falling, "alternatives are not ordered", expected="most probable first", seen=row.values)


@check("LOG-05", needs=(*NEEDS, "LOG-01", "LOG-03", "LOG-04"))
async def greedy_is_the_first(ctx: Context) -> None:
    """Or as probable as the first."""
    _are_first(await _greedy(ctx))


def _are_first(stream: Stream) -> None:
    for row in rows_of(stream.outputs):
        if not row.ids:
            raise NotApplicable("Limits.max_logprobs is 0")
        best = row.token in row.ids and row.values[row.ids.index(row.token)] >= row.values[0] - SAME
        expect(best, "a greedy token is no first alternative", expected=row.ids[0], seen=row.token)


@check("LOG-05", variant="long", needs=("LOG-05",))
async def greedy_is_the_first_to_the_end(ctx: Context) -> None:
    """In an answer of several hundred tokens."""
    asked = await _asked(ctx)
    request = ctx.request(max_tokens=ctx.tokens(MANY), ignore_eos=True, logprobs=asked, temperature=0.0)
    _are_first(await ctx.generate(request))


@check("LOG-06", needs=(*NEEDS, "LOG-01", "LOG-03", "LOG-04"))
async def probabilities_are_shares(ctx: Context) -> None:
    """Of each row."""
    for row in rows_of((await _greedy(ctx)).outputs):
        total = sum(map(math.exp, row.values))
        message = "the probabilities of a row add up to more than 1"
        expect(total <= 1 + ABOVE_ZERO, message, expected="at most 1", seen=f"{total:.4f}")


@check_in("LOG-07", PLAIN, CHOICES, MULTIPLEXED, needs=NEEDS, counts_prompt=True)
async def prompt_rows_are_aligned(ctx: Context, shape: Shape) -> None:
    """A prompt that ends with what the model said to it: there its tokens are the best alternatives."""
    greedy = await ctx.greedy()
    await _are_aligned(ctx, shape, greedy.prompt, greedy.tokens[:PROMPT])


@check("LOG-07", variant="long", needs=(*NEEDS, "LOG-07"), counts_prompt=True)
async def rows_of_long_prompts_are_aligned(ctx: Context) -> None:
    """A prompt that takes several steps, and that is in the cache in part."""
    prompt, count = ctx.prompt(min(LONG, ctx.longest_prompt(2 * PROMPT))), ctx.tokens(PROMPT)
    said = (await ctx.generate(ctx.request(token_ids=prompt, max_tokens=count))).tokens
    await _are_aligned(ctx, PLAIN, prompt, said)


async def _are_aligned(ctx: Context, shape: Shape, before: list[int], said: list[int]) -> None:
    prompt, count = [*before, *said], len(said)
    top = min(ctx.limits.max_prompt_logprobs, 1) if ctx.limits.HasField("max_prompt_logprobs") else 1
    stream = await ask(ctx, shape, ctx.request(token_ids=prompt, prompt_logprobs=top))
    tables = [output for output in stream.outputs if output.HasField("prompt_logprobs")]
    message = "prompt_logprobs is not on the first output of choice 0 alone"
    expect(tables == stream.choice.outputs[:1], message, expected="1", seen=len(tables))
    table = tables[0].prompt_logprobs.logprobs
    expect_equal(len(table.token_logprobs), len(prompt) - 1, "prompt_logprobs has another number of rows")
    _are_logarithms(table)
    if top:
        expect_equal(
            len(table.top_token_ids), len(prompt) - 1, "prompt_logprobs has not one alternative a row"
        )
        _describes(table, prompt[1:], count)


@check("LOG-08", needs=NEEDS, in_company=False)
async def nothing_unasked(ctx: Context) -> None:
    """A plain request."""
    for output in (await ctx.generate(ctx.request())).outputs:
        for field in ("logprobs", "prompt_logprobs", "cum_log_probs"):
            expect(not output.HasField(field), f"{field} is there without being asked for")


@check("LOG-09", needs=NEEDS)
async def too_many_are_refused(ctx: Context) -> None:
    """One more than there may be."""
    most = most_alternatives(ctx.config)
    await ctx.rejects({"logprobs": most + 1}, good=ctx.request(logprobs=most))


@check("LOG-10", needs=(*NEEDS, "LOG-01", "LOG-03"), not_beside=("n",))
async def the_sum_runs(ctx: Context) -> None:
    """After every message."""
    for stream in (await _greedy(ctx), await _sampled(ctx)):
        total = 0.0
        for output in stream.outputs:
            total += sum(output.logprobs.token_logprobs)
            expect(output.HasField("cum_log_probs"), "an output with log-probabilities has no cum_log_probs")
            close = math.isclose(output.cum_log_probs, total, rel_tol=SAME, abs_tol=ABOVE_ZERO)
            message = "cum_log_probs is not the sum of the choice's token_logprobs"
            expect(close, message, expected=f"{total:.4f}", seen=f"{output.cum_log_probs:.4f}")


@check("LOG-11", needs=(*NEEDS, "LIM-03", "LOG-01", "LOG-02", "LOG-03", "LOG-04"))
async def values_are_the_models_own(ctx: Context) -> None:
    """The first row of one prompt, whatever chooses its token. Tokens of the prompt are in it as well."""
    some = ctx.prompt()[:ALTERNATIVES] if ctx.capabilities.selected_logprobs else []
    plain = await _first_row(ctx, logprob_token_ids=some)
    if not plain.ids:
        raise NotApplicable("Limits.max_logprobs is 0")
    own = dict(zip(some, plain.selected, strict=False)) | dict(zip(plain.ids, plain.values, strict=True))
    # Told twice: as alternatives of the row, and by their ids, which no mask takes out of it.
    selected = {"logprob_token_ids": list(own)} if some else {}
    for change in _changing(ctx, plain):
        row = await _first_row(ctx, **change, **selected)
        told = [(row.token, row.value), *zip(row.ids, row.values, strict=True)]
        for token, value in (*told, *zip(own, row.selected, strict=False)):
            close = abs(value - own.get(token, value)) <= FAR
            message = f"token {token} has another log-probability under {next(iter(change))}"
            expect(close, message, expected=f"{own.get(token, value):.4f}", seen=f"{value:.4f}")


def _changing(ctx: Context, row: Row) -> Iterator[dict[str, Value]]:
    """Options that would change the row if it were taken after them."""
    best, capabilities = row.token, ctx.capabilities
    yield {"temperature": HOT}
    yield {"temperature": 1.0, "top_k": 1}
    if capabilities.logit_bias:
        yield {"logit_bias": [pb.LogitBias(token_id=row.ids[-1], bias=20.0)]}
    if capabilities.bad_words:
        yield {"bad_words_token_ids": [pb.TokenSequence(token_ids=[best])]}
    if capabilities.allowed_token_ids and len(row.ids) > 1:
        yield {"allowed_token_ids": row.ids[1:]}
    if capabilities.penalties:
        yield {"repetition_penalty": 10.0}


async def _first_row(ctx: Context, **changes: Value) -> Row:
    request = ctx.request(max_tokens=1, logprobs=await _asked(ctx), **changes)
    return next(rows_of((await ctx.generate(request)).outputs))


async def _asked(ctx: Context) -> int:
    most = ctx.limits.max_logprobs if ctx.limits.HasField("max_logprobs") else ALTERNATIVES
    return min(most, ALTERNATIVES)


async def _greedy(ctx: Context) -> Stream:
    asked = await _asked(ctx)
    return await _observed(ctx, ctx.request(max_tokens=ctx.tokens(TOKENS), logprobs=asked))


async def _sampled(ctx: Context) -> Stream:
    asked: dict[str, Value] = {"temperature": 1.0, "logprobs": 0}
    asked |= {"prompt_logprobs": 0} if ctx.capabilities.prompt_logprobs else {}
    return await _observed(ctx, ctx.request(max_tokens=ctx.tokens(TOKENS), **asked))


async def _observed(ctx: Context, request: pb.GenerateRequest) -> Stream:
    asked = request.request.output_options.logprobs
    stream = await ctx.once(("logprobs", asked), lambda: ctx.generate(request))
    ctx.show(stream.exchange)
    return stream


def _are_logarithms(table: pb.Logprobs) -> None:
    """Of tokens and of alternatives."""
    for value in (*table.token_logprobs, *table.top_logprobs):
        possible = math.isfinite(value) and IMPOSSIBLE * 1.001 <= value <= ABOVE_ZERO
        expect(possible, "no log-probability", expected="at most 0, at least -1e30", seen=value)


def _describes(table: pb.Logprobs, tokens: list[int], count: int) -> None:
    """The last rows are about greedy tokens: their own best alternatives, with the same value."""
    best = [row for row in range(-count, 0) if table.top_token_ids[row] == tokens[row]]
    message = "rows of prompt_logprobs are not about the next token of the prompt"
    expected = f"{count} greedy tokens are the best of their rows"
    # Computed at once and computed one by one differ in rounding, so a few rows may differ.
    expect(len(best) > count / 2, message, expected=expected, seen=f"{len(best)} are")
    for row in best:
        value, first = table.token_logprobs[row], table.top_logprobs[row]
        same = math.isclose(value, first, abs_tol=SAME, rel_tol=SAME)
        expect(same, "a prompt token has not its own value", expected=f"{first:.6f}", seen=f"{value:.6f}")


def _has_columns(output: pb.LLMEngineOutput, asked: int) -> None:
    table, rows = output.logprobs, len(output.token_ids)
    expect(table.top_n <= asked, "more alternatives than were asked for", expected=asked, seen=table.top_n)
    expect(table.top_n or not asked or not rows, "no alternatives, though they were asked for")
    for name in ("top_token_ids", "top_logprobs"):
        size = len(getattr(table, name))
        expect_equal(size, rows * table.top_n, f"{name} has not top_n entries per row")
