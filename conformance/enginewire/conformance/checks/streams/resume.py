"""RES: requests that go on where another engine stopped.

An undisturbed run is made once; then its beginning is handed in as `resume`, and the rest has to be the same.
"""

from __future__ import annotations

import math
from typing import Final

from enginewire import v1 as pb
from enginewire.conformance.checks.streams.shapes import CHOICES, MULTIPLEXED, PLAIN, Shape, ask, check_in
from enginewire.conformance.running.registry import SHAPE, WHOLE, check
from enginewire.conformance.session.context import Context
from enginewire.conformance.session.requests import Value
from enginewire.conformance.wire.stream import Choice, Stream
from enginewire.conformance.wire.violation import NotApplicable, expect, expect_equal

TOKENS: Final = 16
FEWEST: Final = 4
ATTEMPTS: Final = 3
ROOM: Final = 8
"""Tokens left in the window by the prompt that fills it."""
RESUMED: Final = "RES-01"


@check("RES-01", needs=SHAPE)
async def greedy_goes_on(ctx: Context) -> None:
    """Cut after the first token, in the middle, and before the last."""
    await goes_on(ctx, "greedy", max_tokens=ctx.tokens(TOKENS))


@check_in(
    "RES-02",
    PLAIN,
    MULTIPLEXED,
    needs=(*SHAPE, RESUMED, "SAM-02", "SAM-04", "SAM-04/batch-invariant"),
    gate="seed",
    alone=True,
)
async def seeded_goes_on(ctx: Context, shape: Shape) -> None:
    """The random number of a token does not depend on who drew those before it."""
    await goes_on(ctx, "seeded", shape, max_tokens=ctx.tokens(TOKENS), seed=11, temperature=1.0)


@check_in("RES-03", PLAIN, MULTIPLEXED, needs=(*SHAPE, RESUMED), gate="penalties")
async def penalties_go_on(ctx: Context, shape: Shape) -> None:
    """The tokens handed in count as output."""
    for name, value in (("presence_penalty", 2.0), ("frequency_penalty", 2.0), ("repetition_penalty", 5.0)):
        await goes_on(ctx, "penalised", shape, max_tokens=ctx.tokens(TOKENS), **{name: value})


@check("RES-04", needs=(*WHOLE, RESUMED, "USE-01", "USE-02", "STP-01", "STP-02"), counts_prompt=True)
async def limits_count_what_was_delivered(ctx: Context) -> None:
    """max_tokens, min_tokens, usage, what is left of the window, and a stop id that comes after the cut."""
    greedy = await ctx.greedy(TOKENS, least=FEWEST)
    count = len(greedy.tokens)
    _, cut, _ = cuts(count)
    stream = await ctx.generate(resumed(ctx.request(max_tokens=count), greedy.tokens[:cut]))
    expect_equal(len(stream.tokens), count - cut, "max_tokens does not count what was delivered")
    usage = stream.usage
    expect_equal(usage.completion_tokens, count, "completion_tokens does not count what was delivered")
    expect_equal(usage.prompt_tokens, len(greedy.prompt), "prompt_tokens counts what was delivered")
    await _fills_the_window(ctx)
    place = greedy.first_new(2)
    request = ctx.request(max_tokens=count, stop_token_ids=[greedy.tokens[place]])
    stream = await ctx.generate(resumed(request, greedy.tokens[: place - 1]))
    expect_equal(stream.tokens, greedy.tokens[place - 1 : place + 1], "a stop id is not found after a cut")
    expect_equal(stream.choice.reason_name, "STOP", "a stop id ended a resumed choice in another way")


async def _fills_the_window(ctx: Context) -> None:
    """As many tokens as there is room for behind the prompt, those that were delivered among them."""
    if not ctx.config.HasField("context_length"):
        return
    (prompt, room), handed_in = ctx.filling_prompt(ROOM), ctx.prompt(FEWEST - 1, salt=1)
    for most in (room, None):
        request = resumed(ctx.request(token_ids=prompt, max_tokens=most), handed_in)
        choice = (await ctx.generate(request)).choice
        seen, due = f"{len(choice.tokens)} tokens, {choice.reason_name}", room - len(handed_in)
        message = f"a resumed choice with max_tokens {most} does not fill the window"
        expect_equal(seen, f"{due} tokens, LENGTH", message)


@check("RES-05", needs=(*SHAPE, RESUMED, "STP-01", "STP-02", "LIM-06"))
async def min_tokens_goes_on(ctx: Context) -> None:
    """A stop id right after the cut, with and without room below min_tokens."""
    greedy = await ctx.greedy(TOKENS)
    place = greedy.first_new(min(4, len(greedy.tokens) - 1))
    stop = [greedy.tokens[place]]
    request = ctx.request(max_tokens=len(greedy.tokens), stop_token_ids=stop, min_tokens=place + 1)
    stream = await ctx.generate(resumed(request, greedy.tokens[:place]))
    expect_equal(stream.tokens, stop, "min_tokens does not count what was delivered")


@check("RES-06", needs=(*SHAPE, RESUMED))
async def positions_go_on(ctx: Context) -> None:
    """From the number of tokens handed in, without gaps; also behind events, by a call or over a stream."""
    greedy = await ctx.greedy(TOKENS)
    count, keys = len(greedy.tokens), list(ctx.capabilities.annotations)
    for number, cut in enumerate((0, *cuts(count))):
        request = resumed(ctx.request(max_tokens=count, annotations=keys), greedy.tokens[:cut])
        is_multiplexed = ctx.capabilities.multiplexed and bool(number % 2)
        stream = await ctx.start(request, is_multiplexed=is_multiplexed).ok()
        position = cut
        for output in stream.choice.outputs:
            message = "first_output_position does not go on after what was delivered"
            expect_equal(output.first_output_position, position, message)
            position += len(output.token_ids)


@check_in(
    "RES-07", PLAIN, MULTIPLEXED, needs=(*SHAPE, RESUMED, "LOG-01", "LOG-03", "LOG-10"), gate="logprobs"
)
async def logprobs_go_on(ctx: Context, shape: Shape) -> None:
    """The rows of the new tokens alone, and the sum over all of them."""
    count = ctx.tokens(TOKENS)
    whole = await _undisturbed(ctx, max_tokens=count, logprobs=0)
    rows = log_probs_of(whole.choice)
    for cut in cuts(count):
        request = resumed(ctx.request(max_tokens=count, logprobs=0), whole.tokens[:cut])
        request.request.resume.choices[0].cum_log_probs = math.fsum(rows[:cut])
        stream = await ask(ctx, shape, request)
        mine = log_probs_of(stream.choice)
        expected = rows[cut:]
        are_same = len(mine) == len(expected) and all(map(are_close, mine, expected))
        expect(are_same, "the log-probabilities of a resumed choice are others", expected=expected, seen=mine)
        # What it is without a cut is for LOG-10 to say.
        total = stream.choice.outputs[-1].cum_log_probs
        undisturbed = whole.choice.outputs[-1].cum_log_probs
        message = "cum_log_probs does not go on from what was handed in"
        expect(are_close(total, undisturbed), message, expected=undisturbed, seen=total)


@check("SAM-14", variant="resumed", gate="resume", needs=(*SHAPE, RESUMED))
async def bad_words_begin_before_the_cut(ctx: Context) -> None:
    """One of two tokens, of which the first one is handed in."""
    greedy = await ctx.greedy(TOKENS, least=FEWEST)
    cut = len(greedy.tokens) // 2
    word = greedy.tokens[cut - 1 : cut + 1]
    bad = [pb.TokenSequence(token_ids=word)]
    request = ctx.request(max_tokens=len(greedy.tokens), bad_words_token_ids=bad)
    tokens = (await ctx.generate(resumed(request, greedy.tokens[:cut]))).tokens
    message = f"the bad word {word} comes across the cut of a resume"
    expect(tokens[0] != word[1], message, expected="another token", seen=tokens[0])


@check("RES-09", needs=(*SHAPE, RESUMED))
async def there_has_to_be_something_to_do(ctx: Context) -> None:
    """All choices finished; a choice that there is not; one that is named twice; too many tokens."""
    greedy = await ctx.greedy(TOKENS, least=FEWEST)
    first, count = greedy.tokens[: FEWEST - 1], len(greedy.tokens)
    done = pb.ResumedChoice(generated_token_ids=first, finished=True)
    absent = pb.ResumedChoice(index=1, generated_token_ids=first)
    live = pb.ResumedChoice(generated_token_ids=first)
    longer = pb.ResumedChoice(generated_token_ids=[*greedy.tokens, greedy.tokens[0]])
    wrong: list[tuple[dict[str, Value], list[pb.ResumedChoice]]] = [
        *(({}, choices) for choices in ([done], [absent], [live, live], [longer]))
    ]
    if ctx.config.HasField("context_length"):
        room = ctx.config.context_length - len(greedy.prompt)
        whole = pb.ResumedChoice(generated_token_ids=first[:1] * (room + 1))
        wrong.append(({"max_tokens": None}, [whole]))
    for others, choices in wrong:
        change: dict[str, Value] = {"resume": pb.Resume(choices=choices, attempt=1), **others}
        good = resumed(ctx.request(max_tokens=count), first)
        exchange = await ctx.rejects(change, good=good, field="")
        named = exchange.detail.field if exchange.detail else ""
        expect(named.startswith("resume"), "the refusal names another field", expected="resume", seen=named)


@check_in(
    "RES-10",
    PLAIN,
    CHOICES,
    MULTIPLEXED,
    needs=(*WHOLE, RESUMED, "RES-04", "RES-05", "RES-06", "USE-01", "STP-01", "STP-02", "STP-03", "STP-04"),
)
async def what_has_ended_ends_at_once(ctx: Context, shape: Shape) -> None:
    """Its last token came before: by max_tokens, by each list, by both at once.

    So has each of several choices that had theirs. It goes on below min_tokens, and behind an earlier token
    that is a stop id.
    """
    greedy = await ctx.greedy(TOKENS, least=FEWEST)
    place = greedy.first_new(2)
    last, count = [greedy.tokens[place]], place + 1
    for number, (conditions, reason) in enumerate(_ends(last, count)):
        asked = {"max_tokens": len(greedy.tokens), "ignore_eos": reason != "EOS", **conditions}
        for choice in await _rest(ctx, shape, greedy.tokens[:count], asked, of_all=bool(number % 2)):
            expect_equal(choice.tokens, [], "a choice that had its last token already gets one more")
            message = "a choice that had its last token ends with another reason"
            expect_equal(choice.reason_name, reason, message)
            match = pb.StopMatch(token_id=last[0]) if reason == "STOP" else pb.StopMatch()
            seen = choice.terminal.stop_match if choice.terminal else pb.StopMatch()
            expect_equal(seen, match, "the stop_match of a choice that had its last token is another one")
    if count < len(greedy.tokens):
        asked = {"max_tokens": len(greedy.tokens), "stop_token_ids": last, "min_tokens": count + 1}
        (choice,) = await _rest(ctx, shape, greedy.tokens[:count], asked)
        expect(choice.tokens, "a stop id that was handed in ends a choice below min_tokens")
        asked = {"max_tokens": len(greedy.tokens), "stop_token_ids": greedy.tokens[:1]}
        (choice,) = await _rest(ctx, shape, greedy.tokens[:count], asked)
        expect(choice.tokens, "a stop id before the last token that was handed in ends a choice")


def _ends(last: list[int], count: int) -> tuple[tuple[dict[str, Value], str], ...]:
    """What ends a choice of so many tokens with this last one, and its reason."""
    return (
        ({"max_tokens": count}, "LENGTH"),
        ({"stop_token_ids": last}, "STOP"),
        ({"stop_token_ids_visible": last, "min_tokens": count}, "STOP"),
        ({"stop_token_ids_hidden": last, "max_tokens": count}, "EOS"),
        ({"eos_token_ids": last}, "EOS"),
    )


async def _rest(
    ctx: Context, shape: Shape, handed_in: list[int], asked: dict[str, Value], *, of_all: bool = False
) -> list[Choice]:
    """What comes of the last choice of this shape, or of all, of which so much was handed in."""
    request, last = resumed(ctx.request(**asked), handed_in), shape.choices - 1
    request.request.resume.choices[0].index = last
    for index in range(last if of_all else 0):
        request.request.resume.choices.add(index=index, generated_token_ids=handed_in)
    choices = (await ask(ctx, shape, request)).choices
    return [choices.get(each.index, Choice(each.index)) for each in request.request.resume.choices]


async def goes_on(ctx: Context, what: str, shape: Shape = PLAIN, **changes: Value) -> None:
    """An undisturbed run, and the same run cut in several places, which go on in this shape."""
    whole = await _undisturbed(ctx, **changes)
    if len(whole.tokens) < whole.request.request.stop_conditions.max_tokens:
        raise NotApplicable("the answer is too short to be cut")
    for cut in cuts(len(whole.tokens)):
        answer = await ask(ctx, shape, resumed(ctx.request(**changes), whole.tokens[:cut]))
        message = f"a {what} request cut after {cut} tokens goes on in another way"
        expect_equal(answer.choice.tokens, whole.tokens[cut:], message)


async def _undisturbed(ctx: Context, **changes: Value) -> Stream:
    """Made once for all shapes in which it goes on."""
    stream = await ctx.once(("undisturbed", str(changes)), lambda: ctx.generate(ctx.request(**changes)))
    ctx.show(stream.exchange)
    return stream


def cuts(count: int) -> tuple[int, int, int]:
    """Where an answer of so many tokens is cut: after the first, in the middle, before the last."""
    return (1, (count - 1) // 2, count - 1)


def resumed(request: pb.GenerateRequest, tokens: list[int]) -> pb.GenerateRequest:
    """The request, whose first choice goes on behind these tokens. Its attempts are not always the first."""
    choice = pb.ResumedChoice(generated_token_ids=tokens)
    request.request.resume.CopyFrom(pb.Resume(choices=[choice], attempt=1 + len(tokens) % ATTEMPTS))
    return request


def log_probs_of(choice: Choice) -> list[float]:
    """Of each token that was sent."""
    return [value for output in choice.outputs for value in output.logprobs.token_logprobs]


def are_close(one: float, other: float) -> bool:
    """Up to rounding."""
    return math.isclose(one, other, rel_tol=1e-3, abs_tol=1e-2)
