"""Checks of a backend when its engine fails: errors, violations of the contract, another attempt."""

from __future__ import annotations

import asyncio

import grpc

from enginewire import v1 as pb
from enginewire.conformance.client_side.answer import DECODE_ERROR, Answer
from enginewire.conformance.client_side.checks import client_check
from enginewire.conformance.client_side.checks.routing import NOTE
from enginewire.conformance.client_side.context import QUIET_SECONDS, ClientContext
from enginewire.conformance.client_side.stage.alphabet import UNKNOWN, VOCAB_SIZE, ids
from enginewire.conformance.client_side.stage.facts import Facts
from enginewire.conformance.client_side.stage.script import (
    DIED,
    LENGTH,
    Fail,
    Hold,
    Say,
    Stay,
    say,
)
from enginewire.conformance.client_side.stage.turn import Scene, Turn
from enginewire.conformance.wire.violation import expect, expect_equal

BROKEN = Fail(grpc.StatusCode.INTERNAL, pb.ERROR_REASON_INTERNAL)
REFUSED = Fail(
    grpc.StatusCode.INVALID_ARGUMENT,
    pb.ERROR_REASON_INVALID_REQUEST,
    field="sampling_options.temperature",
    message="sampling_options.temperature: refused by the script",
)
TOO_MUCH = Fail(grpc.StatusCode.RESOURCE_EXHAUSTED, pb.ERROR_REASON_KV_EXHAUSTED)
TOO_LARGE = Fail(grpc.StatusCode.RESOURCE_EXHAUSTED, pb.ERROR_REASON_TOO_LARGE)
FULL = Fail(grpc.StatusCode.RESOURCE_EXHAUSTED, pb.ERROR_REASON_QUEUE_FULL, retryable=True)
UNKNOWN_REASON = 99


@client_check("CLI-09", hostile=True)
async def undecodable_ids_are_a_decode_error(ctx: ClientContext) -> None:
    """An id without a meaning: whoever does not skip it has to say so."""
    scene = ctx.play(say("a"), say(UNKNOWN), say("b"), Say(finish=LENGTH))
    answer = await ctx.start(scene).ended()
    if answer.failures:
        first = answer.failures[0]
        expect(
            first.startswith(DECODE_ERROR),
            "the message says something else",
            expected=DECODE_ERROR,
            seen=first,
        )
        if answer.error:
            reason = pb.ErrorReason.Name(answer.detail.reason)
            expect_equal(reason, "ERROR_REASON_DECODE_ERROR", "the reason of a decode error is another one")
        expect(answer.choice.text == "a", "text was made up", expected="'a'", seen=answer.described)
    else:
        expect_equal(answer.choice.text, "ab", "an id without a meaning has a text")


@client_check("CLI-10")
async def an_end_without_terminal_is_an_error(ctx: ClientContext) -> None:
    """The engine ends with OK in the middle, and nobody can resume there."""
    await _expect_incomplete(ctx, say("ab"))


@client_check("CLI-10", "choices", needs=("CLI-10",))
async def an_end_beside_an_open_choice_is_an_error(ctx: ClientContext) -> None:
    """Of two choices one has its terminal output by then."""
    await _expect_incomplete(ctx, say("ab", finish=LENGTH), say("cd", index=1), n=2)


async def _expect_incomplete(ctx: ClientContext, *script: Say, n: int = 1) -> None:
    # On an engine of its own: where requests share a stream, all of them end with it.
    backend = await ctx.backends.fresh(ctx.backends.engine(Facts(resume=False)))
    try:
        other = await ctx.on(backend)
        answer = await other.start(other.play(*script), n=n).failed()
        expect_equal(answer.reason, "STREAM_INCOMPLETE", "the reason is another one")
    finally:
        await backend.stop()


@client_check("CLI-13", "with-resume")
async def a_lost_answer_is_not_started_again(ctx: ClientContext) -> None:
    """Whoever sends it again says what was delivered."""
    scene = ctx.play(say("ab"), DIED, then=[[say("cd", finish=LENGTH)]])
    await _expect_no_restart(ctx, scene)


@client_check("CLI-13", "held", needs=("CLI-13/with-resume",))
async def an_answer_without_text_so_far_is_not_started_again(ctx: ClientContext) -> None:
    """All its text is withheld when the engine is lost, and perhaps its ids: then it may begin once more."""
    scene = ctx.play(say("ST"), DIED, then=[[say("xy", finish=LENGTH)]])
    answer = await ctx.start(scene, stop=["STOP"]).ended()
    if any(not generated(turn) for turn in scene.turns[1:]):
        expect_equal(answer.choice.tokens, ids("xy"), "the request was started again after its first token")


@client_check("CLI-13", "without-resume")
async def without_resume_the_failure_is_reported(ctx: ClientContext) -> None:
    """The engine cannot continue, so there is nothing to be sent."""
    other = await ctx.on(await ctx.backends.shared(Facts(resume=False)))
    scene = other.play(say("ab"), DIED, then=[[say("cd", finish=LENGTH)]])
    await _expect_no_restart(other, scene)
    expect_equal(len(scene.turns), 1, "the request was sent again")


async def _expect_no_restart(ctx: ClientContext, scene: Scene) -> None:
    answer = await ctx.start(scene).ended()
    again = [turn for turn in scene.turns[1:] if not generated(turn)]
    expect(not again, "the request was started again after its first token", seen=answer.described)
    expect(answer.choice.text.startswith("ab"), "what was delivered is gone", seen=answer.described)
    expect(
        len(scene.turns) > 1 or answer.failures, "the lost answer passed for complete", seen=answer.described
    )


def generated(turn: Turn) -> list[int]:
    """Token ids of all choices that a call of the backend hands in."""
    return [token for choice in turn.part.resume.choices for token in choice.generated_token_ids]


@client_check("CLI-14", hostile=True)
async def an_unknown_reason_is_an_error(ctx: ClientContext) -> None:
    """And the backend lives on."""
    await ctx.start(ctx.play(say("ab"), Say(finish=UNKNOWN_REASON))).failed()
    await _expect_alive(ctx)


@client_check("CLI-25", "repeated", hostile=True)
async def a_repeated_output_is_a_violation(ctx: ClientContext) -> None:
    """Cumulative ids: the second output holds those of the first again."""
    await _expect_violation(ctx, say("ab"), Say("abc", position=0), Stay(), text="ab")


@client_check("CLI-25", "vocabulary", hostile=True)
async def an_id_outside_the_vocabulary_is_a_violation(ctx: ClientContext) -> None:
    """The first id that cannot exist."""
    await _expect_violation(ctx, say("ab"), say(VOCAB_SIZE), Stay(), text="ab")


@client_check("CLI-25", "index", hostile=True)
async def a_choice_nobody_asked_for_is_a_violation(ctx: ClientContext) -> None:
    """Index 5 of one."""
    await _expect_violation(ctx, say("ab"), say("x", index=5), Stay(), text="ab")


async def _expect_violation(ctx: ClientContext, *script: Say | Stay, text: str) -> None:
    answer = await ctx.start(ctx.play(*script)).failed()
    expect_equal(answer.reason, "PROTOCOL_VIOLATION", "the reason is another one")
    expect_equal(answer.choice.text, text, "the text is not what came before the violation")
    expect_equal(list(answer.choices), [0], "a choice that nobody asked for was passed on")
    await _expect_alive(ctx)


async def _expect_alive(ctx: ClientContext) -> Answer:
    return await ctx.start(ctx.play(say("alive", finish=LENGTH))).ok()


@client_check("CLI-26")
async def a_late_failure_is_the_last_item(ctx: ClientContext) -> None:
    """Every language sees items alike; a status loses what is still buffered in some."""
    answer = await ctx.start(ctx.play(say("ab"), BROKEN)).failed()
    expect_equal(answer.exchange.code, grpc.StatusCode.OK, "a failure after acceptance is not an item")
    expect(answer.items[-1].HasField("error"), "the error is not the last item", seen=answer.described)
    expect_equal(answer.choice.text, "ab", "what came before the failure is not there")


@client_check("CLI-26", "accepted")
async def a_failure_behind_acceptance_is_an_item(ctx: ClientContext) -> None:
    """The engine has accepted the request, and fails a moment later without having said anything else."""
    hold = Hold()
    scene = ctx.play(hold, BROKEN)
    answer = ctx.start(scene)
    await ctx.first_turn(scene)
    # Of headers that come together with a status, some gRPC libraries tell nothing.
    await asyncio.sleep(QUIET_SECONDS)
    hold.released.set()
    await answer.failed()
    expect_equal(answer.exchange.code, grpc.StatusCode.OK, "a failure after acceptance is not an item")
    expect(answer.items[-1].HasField("error"), "the error is not the last item", seen=answer.described)


@client_check("CLI-26", "before-token")
async def a_failure_behind_an_event_is_an_item(ctx: ClientContext) -> None:
    """The engine has accepted the request and answered an annotation, and fails before its first token."""
    scene = ctx.play(pb.EngineEvent(event=NOTE), BROKEN)
    answer = await ctx.start(scene, annotations=[NOTE]).failed()
    expect_equal(answer.exchange.code, grpc.StatusCode.OK, "a failure after acceptance is not an item")
    expect(answer.items[-1].HasField("error"), "the error is not the last item", seen=answer.described)


@client_check("CLI-27")
async def a_final_refusal_reaches_the_caller(ctx: ClientContext) -> None:
    """Code, reason and field as the engine said them, after one attempt."""
    scene = ctx.play(REFUSED, then=[[say("ab", finish=LENGTH)]])
    answer = await ctx.start(scene).failed()
    expect_equal(len(scene.turns), 1, "the request was sent again")
    seen = (answer.error.code if answer.error else 0, answer.reason, answer.detail.field)
    expected = (REFUSED.code.value[0], "INVALID_REQUEST", REFUSED.field)
    expect_equal(seen, expected, "code, reason or field of the refusal are others")


@client_check("CLI-27", "by-reason", needs=("CLI-27",))
async def a_code_alone_does_not_mean_again(ctx: ClientContext) -> None:
    """That of a full queue, for reasons that stay."""
    for refusal in (TOO_MUCH, TOO_LARGE):
        scene = ctx.play(refusal, then=[[say("ab", finish=LENGTH)]])
        answer = await ctx.start(scene).failed()
        expect_equal(len(scene.turns), 1, "a request was sent again that is not retryable")
        seen = (answer.error.code if answer.error else 0, answer.reason)
        expected = (refusal.code.value[0], pb.ErrorReason.Name(refusal.reason).removeprefix("ERROR_REASON_"))
        expect_equal(seen, expected, "code or reason of the refusal are others")


@client_check("CLI-28")
async def a_refusal_for_now_is_sent_again(ctx: ClientContext) -> None:
    """A full queue, then an engine that dies before its first token, then an answer."""
    for failure in (FULL, DIED):
        scene = ctx.play(failure, then=[[say("ab", finish=LENGTH)]])
        answer = await ctx.start(scene).ok()
        expect_equal(answer.choice.text, "ab", "the answer of the second attempt is another one")
