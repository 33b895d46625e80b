"""Checks of a backend towards its engine: what it sends, when it leaves, whose word counts."""

from __future__ import annotations

from collections.abc import Mapping

import grpc

from enginewire import v1 as pb
from enginewire.conformance.client_side.answer import Answer
from enginewire.conformance.client_side.checks import WAY_THROUGH, client_check
from enginewire.conformance.client_side.context import ClientContext, only_turn
from enginewire.conformance.client_side.stage.alphabet import EOS as EOS_ID, ids
from enginewire.conformance.client_side.stage.script import (
    CANCELLED,
    EOS,
    ERROR,
    LENGTH,
    Fail,
    Hold,
    Say,
    Stay,
    say,
)
from enginewire.conformance.wire.stream import reason_name
from enginewire.conformance.wire.violation import NotApplicable, expect, expect_equal

DEADLINE_SECONDS = 9.0
NOTICEABLE_SECONDS = 0.5
FULL_FOR_A_SECOND = Fail(
    grpc.StatusCode.RESOURCE_EXHAUSTED, pb.ERROR_REASON_QUEUE_FULL, retryable=True, retry_after_ms=1000
)


@client_check(WAY_THROUGH)
async def an_empty_terminal_keeps_its_reason(ctx: ClientContext) -> None:
    """A plain answer of a few messages, for each way an engine can end well."""
    for finish in (LENGTH, EOS, CANCELLED):
        answer = await ctx.start(ctx.play(say("hel"), say("lo"), Say(finish=finish))).ok()
        expect_equal(answer.choice.text, "hello", "the text is another one")
        expect_equal(answer.choice.tokens, ids(*"hello"), "the token ids are others")
        expect_equal(answer.choice.reason, reason_name(finish), "the finish reason is another one")


@client_check("CLI-06")
async def a_stop_is_told_to_the_engine(ctx: ClientContext) -> None:
    """The engine has more to say and stays until it is told."""
    scene = ctx.play(say("a STOP"), say("late"), Stay())
    answer = await ctx.start(scene, stop=["STOP"]).ok()
    expect_equal(answer.choice.tokens, ids(*"a STOP"), "tokens after the stop were passed on")
    await ctx.left(only_turn(scene), "a stop string was found")


@client_check("CLI-08")
async def max_tokens_holds_against_the_engine(ctx: ClientContext) -> None:
    """Three are asked for, five come in one output, and the engine does not end."""
    scene = ctx.play(Say("abcde"), Stay())
    answer = await ctx.start(scene, max_tokens=3).ok()
    expect_equal(answer.choice.tokens, ids(*"abc"), "max_tokens does not hold")
    expect_equal(answer.choice.text, "abc", "the text goes beyond max_tokens")
    expect_equal(answer.choice.reason, "LENGTH", "max_tokens ended the choice with another reason")
    await ctx.left(only_turn(scene), "max_tokens was reached")


@client_check("CLI-11")
async def nothing_follows_a_terminal(ctx: ClientContext) -> None:
    """A sibling goes on, so the backend still reads."""
    scene = ctx.play(
        say("a", index=0, finish=LENGTH),
        say("b", index=1),
        say("late", index=0),
        say("late", index=0, finish=LENGTH),
        say("c", index=1, finish=LENGTH),
    )
    answer = await ctx.start(scene, n=2).ended()
    expect_equal(answer.choice.tokens, ids("a"), "tokens after a terminal were passed on")
    expect_equal(len(answer.choice.terminals), 1, "a second terminal was passed on")


@client_check("CLI-23")
async def failures_of_the_engine_win(ctx: ClientContext) -> None:
    """The last output has both: a stop string and the end of a request that did not end well."""
    for finish in (ERROR, CANCELLED):
        scene = ctx.play(say("a"), Say([" STOP more"], finish=finish, error="scripted"))
        answer = await ctx.start(scene, stop=["STOP"]).ended()
        ends = [terminal.finish_reason for terminal in answer.choice.terminals]
        expect(
            ends == [finish] or (not ends and answer.error),
            "a stop string covers up how the engine ended the choice",
            expected=reason_name(finish),
            seen=answer.described,
        )


@client_check("CLI-23", "length")
async def a_stop_wins_over_length(ctx: ClientContext) -> None:
    """The caller's stop is in the last output that max_tokens allowed."""
    scene = ctx.play(say("a"), say(" STOP more", finish=LENGTH))
    answer = await ctx.start(scene, stop=["STOP"]).ok()
    expect_equal(answer.choice.reason, "STOP", "the engine's LENGTH covers a stop string")


@client_check("CLI-24")
async def usage_is_that_of_the_engine(ctx: ClientContext) -> None:
    """An answer that the engine ended."""
    scene = ctx.play(say("hello"), say(EOS_ID, finish=EOS))
    _expect_usage(await ctx.start(scene).ok(), len(scene.prompt), 6)


@client_check("CLI-24", "after-a-stop")
async def usage_is_counted_up_to_the_stop(ctx: ClientContext) -> None:
    """The engine's own usage is never read."""
    scene = ctx.play(say("ab STOP"), say("late"), Stay())
    _expect_usage(await ctx.start(scene, stop=["STOP"]).ok(), len(scene.prompt), 7)


def _expect_usage(answer: Answer, prompt: int, completion: int) -> None:
    end = answer.choice.end
    expect(end.HasField("completion_usage"), "the last terminal output has no usage", seen=answer.described)
    usage = end.completion_usage
    seen = (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens)
    expect_equal(
        seen, (prompt, completion, prompt + completion), "usage (prompt, completion, total) is wrong"
    )


@client_check("CLI-31")
async def backend_fields_do_not_reach_the_engine(ctx: ClientContext) -> None:
    """All of them at once."""
    scene = ctx.play(say("a", finish=LENGTH))
    await ctx.start(scene, stop=["STOP"], skip_special_tokens=False, include_stop_str_in_output=True).ok()
    part = only_turn(scene).part
    reached = [
        *(["stop_conditions.stop"] if part.stop_conditions.stop else []),
        *_set(part.sampling_options, "include_stop_str_in_output"),
        *_set(part.output_options, "skip_special_tokens"),
    ]
    expect_equal(reached, [], "fields of the backend reached the engine")


def _set(owner: pb.SamplingOptions | pb.OutputOptions, name: str) -> list[str]:
    return [field.name for field, _ in owner.ListFields() if field.name == name]


@client_check("CLI-32")
async def the_deadline_is_passed_on(ctx: ClientContext) -> None:
    """The engine can only give up in time when it knows the time."""
    hold = Hold()
    scene = ctx.play(say("a"), hold, Say(finish=LENGTH))
    answer = await ctx.start(scene, timeout=DEADLINE_SECONDS).first_token()
    left = only_turn(scene).seconds_left
    hold.released.set()
    await answer.ok()
    expect(
        left is not None and left <= DEADLINE_SECONDS + 1,
        "the engine does not know the caller's deadline",
        expected=f"at most {DEADLINE_SECONDS} s",
        seen="none" if left is None else f"{left:.1f} s",
    )


@client_check("CLI-32", "again")
async def another_attempt_has_what_is_left(ctx: ClientContext) -> None:
    """The first one is refused for a second."""
    scene = ctx.play(FULL_FOR_A_SECOND, then=[[say("ab", finish=LENGTH)]])
    await ctx.start(scene, timeout=DEADLINE_SECONDS).ended()
    if len(scene.turns) < 2:
        raise NotApplicable("this backend sends no request again")
    first, again = scene.turns[:2]
    between = again.exchange.started_at - first.exchange.started_at
    if between < NOTICEABLE_SECONDS:
        raise NotApplicable("this backend sends a request again at once")
    most = (first.seconds_left or DEADLINE_SECONDS) - between / 2
    seen = again.seconds_left or DEADLINE_SECONDS
    message = "another attempt gets the whole time again"
    expect(seen <= most, message, expected=f"at most {most:.1f} s", seen=f"{seen:.1f} s")


@client_check("CLI-33", "empty-stop")
async def an_empty_stop_string_is_refused(ctx: ClientContext) -> None:
    """It would match before the first token, whatever is beside it."""
    for stop in ([""], ["x", ""], ["", "x"]):
        await expect_refusal(ctx, "stop_conditions.stop", good={"stop": ["x"]}, bad={"stop": stop})


@client_check("CLI-33", "min-above-max")
async def min_tokens_above_max_tokens_is_refused(ctx: ClientContext) -> None:
    """No answer could have both."""
    good, bad = {"min_tokens": 1, "max_tokens": 4}, {"min_tokens": 5, "max_tokens": 4}
    await expect_refusal(ctx, "stop_conditions.min_tokens", good=good, bad=bad)


async def expect_refusal(
    ctx: ClientContext, field: str, good: Mapping[str, object], bad: Mapping[str, object]
) -> None:
    """One request is served, the other refused as invalid by the name of that field."""
    await ctx.start(ctx.play(say("a", finish=LENGTH)), **good).ok()  # type: ignore[arg-type]  # fields
    answer = await ctx.start(ctx.play(say("a", finish=LENGTH)), **bad).failed()  # type: ignore[arg-type]  # fields
    code = answer.error.code if answer.error else 0
    expect_equal(code, grpc.StatusCode.INVALID_ARGUMENT.value[0], "the code of the refusal is another one")
    named = answer.detail.field.split("[")[0]
    expect_equal(named, field, "the refusal names another field")
